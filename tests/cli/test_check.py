"""Looking at sites before a run, and handing models over after one."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fedfomo
from cli_calls import SMALL, call, refused
from fedfomo.errors import InputError
from fedfomo.sites.checks import check_sites

MODULE = """
import torch
from torch import nn

def make_model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))

def part(seed, number):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(number, 3, generator=rng), torch.arange(number) % 2

sites = {"leeds": (part(0, 40), part(1, 80)), "turin": (part(2, 40), part(3, 8))}
"""


def part(seed: int, number: int, label: int | None = None) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % 2 if label is None else torch.full((number,), label)
    return torch.randn(number, 3, generator=rng), labels


def test_a_module_is_checked_with_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "hospitals.py"
    file.write_text(MODULE)
    call("check", str(file))
    printed = capsys.readouterr().out
    assert re.search(r"leeds +40 +40 +40 +██  ██", printed)
    assert "turin: 4 validation examples are too few" in printed
    assert "BatchNorm (1 in the model)" in printed
    assert "privacy: with differential privacy" in printed
    assert "2 sites can federate" in printed


def test_a_folder_is_checked_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, seed in (("leeds", 0), ("turin", 10)):
        place = tmp_path / name
        place.mkdir()
        inputs, labels = part(seed, 40)
        np.savez(place / "train.npz", inputs=inputs.numpy(), labels=labels.numpy())
        inputs, labels = part(seed + 1, 40)
        save_file({"inputs": inputs, "labels": labels}, place / "validation.safetensors")
        rows = "\n".join(f"{a},{b},{c},{k % 2}" for k, (a, b, c) in enumerate(part(seed + 2, 40)[0].tolist()))
        (place / "test.csv").write_text(f"a,b,c,label\n{rows}\n")
    call("check", str(tmp_path))
    assert "2 sites can federate" in capsys.readouterr().out
    sites = fedfomo.load_sites(tmp_path)
    assert [len(part) for part in sites["leeds"]] == [40, 40, 40]
    result = fedfomo.federate(lambda: nn.Linear(3, 2), sites, rounds=1, workers=0, baselines=())
    assert result.sites == ("leeds", "turin")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.csv", "a,b\n1,2\n", "must be called label"),
        ("train.csv", "a,label\n1,2,3\n", "line 2: 3 values under 2 headings"),
        ("train.csv", "a,label\nx,1\n", "line 2, column 'a': 'x' is no number, as others of the column are"),
        ("train.npz", "no archive", "cannot be read"),
        ("notes.txt", "", "nothing to read"),
    ],
)
def test_files_that_cannot_be_read_are_named(tmp_path: Path, name: str, content: str, words: str) -> None:
    (tmp_path / "leeds").mkdir()
    (tmp_path / "leeds" / name).write_text(content)
    if name.startswith("train"):
        (tmp_path / "leeds" / "target.csv").write_text("a,label\n1,1\n")
    with pytest.raises(InputError, match=words):
        fedfomo.load_sites(tmp_path)


def test_no_pickle_is_read(tmp_path: Path) -> None:
    (tmp_path / "leeds").mkdir()
    for name in ("train", "target"):
        np.savez(tmp_path / "leeds" / f"{name}.npz", inputs=np.array([{}], dtype=object), labels=np.zeros(1))
    with pytest.raises(InputError, match="cannot be read"):
        fedfomo.load_sites(tmp_path)


def test_the_same_sample_in_two_parts_is_told_and_may_federate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs, labels = part(0, 40)
    found = check_sites({"leeds": ((inputs, labels), (inputs[:7], labels[:7]), part(1, 40))})
    assert not found.faults
    assert "leeds: 7 samples are both in its training and in its validation data" in "\n".join(found.warnings)
    place = tmp_path / "leeds"
    place.mkdir()
    for name in ("train", "target"):
        np.savez(place / f"{name}.npz", inputs=inputs.numpy(), labels=labels.numpy())
    call("check", str(tmp_path))
    printed = capsys.readouterr().out
    assert "leeds: 20 samples are both in its training and in its test data" in printed
    assert "1 sites can federate" in printed
    result = fedfomo.federate(lambda: nn.Linear(3, 2), fedfomo.load_sites(tmp_path), rounds=1, workers=0, baselines=())
    assert any(
        note.startswith("note: leeds: 20 samples are both in its training and in its test data")
        for note in result.notes
    )


def test_equal_inputs_with_other_labels_are_other_samples() -> None:
    inputs, labels = part(0, 40)
    # Three of five have the label that they are trained with, whatever its type.
    relabelled = torch.cat([labels[:3], 1 - labels[3:5]]).double()
    found = check_sites({"leeds": ((inputs, labels), (inputs[:5], relabelled), part(1, 40))})
    assert "leeds: 3 samples are both in its training and in its validation data" in "\n".join(found.warnings)


def test_the_same_sample_in_two_sites_is_told() -> None:
    inputs, labels = part(0, 40)
    found = check_sites({"leeds": ((inputs, labels), part(1, 40)), "turin": ((inputs[:5], labels[:5]), part(2, 40))})
    assert not found.faults
    assert "leeds and turin hold 5 samples in common" in "\n".join(found.warnings)


def test_labels_that_a_site_aims_at_but_does_not_hold_are_told() -> None:
    found = check_sites({"porto": (part(0, 40, label=0), part(1, 80, label=1))})
    assert any(note.startswith("porto: its training data and its target share only 0%") for note in found.warnings)


def test_classes_that_are_counted_from_one_are_told() -> None:
    found = check_sites({"leeds": (part(0, 40, label=1), part(1, 80, label=2))})
    assert any(
        note.startswith("nobody has label 0: classes count from 0, so for labels up to 2") for note in found.warnings
    )
    found = check_sites({"leeds": (part(0, 40, label=1), part(1, 80, label=0))})
    assert not any("label 0" in note for note in found.warnings)


def test_that_no_model_was_found_is_told() -> None:
    sites = {"leeds": (part(0, 40), part(1, 40))}
    assert any(note.startswith("no model: ") for note in check_sites(sites).warnings)
    assert not any(note.startswith("no model") for note in check_sites(sites, lambda: nn.Linear(3, 2)).warnings)


def test_a_model_that_does_not_fit_is_a_fault() -> None:
    found = check_sites({"leeds": (part(0, 40), part(1, 40))}, lambda: nn.Linear(9, 2))
    assert "the model cannot take" in found.faults[0]


BROKEN = torch.tensor([[1.0, 2.0, math.nan]] * 8)


@pytest.mark.parametrize(
    ("sites", "fault"),
    [
        ({"../leeds": (part(0, 40), part(1, 40))}, "cannot name a file"),
        ({name: (part(k, 40), part(k + 5, 40)) for k, name in enumerate(("leeds", "Leeds"))}, "upper and lower case"),
        ({"leeds": (part(0, 40),)}, "site 'leeds': give (train, target)"),
        ({"leeds": ((BROKEN, torch.zeros(8)), part(1, 40))}, "its training inputs hold values that are not finite"),
        ({"leeds": ((torch.ones(8, 3), BROKEN), part(1, 40))}, "its training labels hold values that are not finite"),
        ({"leeds": (part(0, 40), part(1, 40, label=9))}, "site 'leeds', validation data: "),
    ],
)
def test_a_check_finds_what_a_federation_refuses(sites: dict[str, Any], fault: str) -> None:
    found = check_sites(sites, lambda: nn.Linear(3, 2)).faults
    assert fault in found[0]
    with pytest.raises(InputError, match=re.escape(found[0])):
        fedfomo.federate(lambda: nn.Linear(3, 2), sites, rounds=1, workers=0)


def test_all_faults_are_told_at_once() -> None:
    sites: dict[str, Any] = {"a/b": (part(0, 40), part(1, 40)), "turin": (part(2, 40),), "lyon": (part(3, 40), "x")}
    found = check_sites(sites)
    assert [re.findall("a/b|turin|lyon", fault) for fault in found.faults] == [["a/b"], ["turin"], ["lyon"]]
    assert [card.name for card in found.sites] == ["a/b"]


@pytest.mark.parametrize(
    ("sites", "fraction", "words"),
    [
        ({}, 0.5, "at least one"),
        ({0: (part(0, 40), part(1, 40))}, 0.5, "names of sites are texts"),
        ({"leeds": (part(0, 40), part(1, 40))}, 7.0, "between 0 and 1, not 7"),
    ],
)
def test_without_sites_or_a_division_nothing_is_checked(sites: dict[Any, Any], fraction: float, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_sites(sites, validation_fraction=fraction)
    with pytest.raises(InputError, match=words):
        fedfomo.federate(lambda: nn.Linear(3, 2), sites, validation_fraction=fraction)


def test_what_is_no_folder_and_no_module_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "there is no folder, file or module" in refused(capsys, "check", "no_such_module_anywhere")
    for typo in ("./typo", "no_such_package.sites", "a..b", "../no-such-sites", "json.no_such_part"):
        assert f"there is no folder, file or module {typo}" in refused(capsys, "check", typo)
    assert "there is no file typo.py" in refused(capsys, "check", "./typo.py")
    empty = tmp_path / "empty.py"
    empty.write_text("")
    assert "defines no sites" in refused(capsys, "check", str(empty))


@pytest.mark.parametrize(
    "method",
    [["fedfomo"], ["apfl-logits"], ["mapper", "--mapper.mix", "outputs"], ["private-mixture"], ["mocha-linear"]],
)
def test_the_model_of_a_run_loads_by_its_snippet(
    method: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "three.safetensors"
    call("run", "--out", str(run), *SMALL, "--rounds", "1", "--method", *method)
    capsys.readouterr()
    call("export", str(run), "--site", "3", "--out", str(out))
    snippet = capsys.readouterr().out.split("they load with")[1]
    space: dict[str, nn.Module] = {}
    exec(snippet, space)  # noqa: S102
    kept = load_file(run / "models" / "client-00003.safetensors")
    assert all(torch.equal(tensor, kept[name]) for name, tensor in space["model"].state_dict().items())
    assert "unknown client '33'" in refused(capsys, "export", str(run), "--site", "33")


def test_the_model_of_a_site_loads_into_the_users_module(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sites = {name: (part(k, 20), part(k + 10, 20)) for k, name in enumerate(("leeds", "turin"))}
    result = fedfomo.federate(lambda: nn.Linear(3, 2), sites, rounds=1, workers=0, baselines=())
    result.save(tmp_path / "saved")
    assert (tmp_path / "saved" / "report.html").exists()
    out = tmp_path / "leeds.safetensors"
    call("export", str(tmp_path / "saved"), "--site", "leeds", "--out", str(out))
    assert "model = make_model()" in capsys.readouterr().out
    line = refused(capsys, "export", str(tmp_path / "saved"), "--site", "leeds", "--out", str(tmp_path))
    assert "is a folder: give a file" in line
    module = nn.Linear(3, 2)
    module.load_state_dict(load_file(out))
    assert torch.equal(module.weight, result.models["leeds"].state_dict()["weight"])
    assert "did you mean 'leeds'" in refused(capsys, "export", str(tmp_path / "saved"), "--site", "leed")
