"""Inputs are brought to one scale by what the training part says of it."""

import json
from pathlib import Path

import pytest
import torch

from cli_calls import call
from fedfomo.core.data import ClientData, Examples
from fedfomo.datasets.standardise import Scale
from fedfomo.runs.config import ExperimentConfig, RunConfig
from fedfomo.runs.config_io import build
from fedfomo.runs.setup import prepare

# Two channels: 0 and 2, with mean 1; 3 and 3, with no deviation to divide by.
IMAGES = torch.tensor([[[[0.0]], [[3.0]]], [[[2.0]], [[3.0]]]])


def test_channels_are_scaled_one_by_one() -> None:
    scaled = Scale.of(IMAGES)(IMAGES)
    assert scaled[:, 0].flatten().tolist() == pytest.approx([-(2**-0.5), 2**-0.5])
    assert scaled[:, 1].flatten().tolist() == [0.0, 0.0]


def test_a_rounded_scale_has_four_digits_and_no_zero_to_divide_by() -> None:
    rounded = Scale(torch.full((1, 1, 1, 1), 0.49139968), torch.full((1, 1, 1, 1), 1e-6)).rounded()
    assert rounded.described() == {"mean": [0.4914], "deviation": [0.0001]}


def test_all_parts_of_a_client_are_scaled_alike() -> None:
    part = Examples(IMAGES, torch.tensor([0, 1]))
    scale = Scale.of(IMAGES)
    scaled = scale.applied_to(ClientData(part, part.take(torch.tensor([1])), part))
    assert torch.equal(scaled.train.inputs, scale(IMAGES))
    assert torch.equal(scaled.validation.inputs, scale(IMAGES)[1:])
    assert torch.equal(scaled.test.inputs, scale(IMAGES))
    assert torch.equal(scaled.test.labels, part.labels)


def test_only_the_inputs_of_a_standardised_run_differ() -> None:
    plain, scaled = (prepare(ExperimentConfig(workers=0, standardise=choice), 0) for choice in (False, True))
    assert plain.scale is None
    assert scaled.scale is not None
    assert scaled.scenario.partition.groups == plain.scenario.partition.groups
    for one, other in zip(plain.scenario.clients, scaled.scenario.clients, strict=True):
        assert torch.equal(other.train.inputs, scaled.scale(one.train.inputs))
        assert torch.equal(other.test.labels, one.test.labels)
    everything = torch.cat([client.train.inputs for client in scaled.scenario.clients])
    assert abs(float(everything.mean())) < 0.01


def test_the_papers_sets_are_standardised_unless_one_says_otherwise() -> None:
    assert [
        build(RunConfig, {"dataset": name}).setting.standardise for name in ("digits", "mnist", "cifar10", "own")
    ] == [
        False,
        True,
        True,
        False,
    ]
    assert not build(RunConfig, {"dataset": "cifar10", "standardise": False}).setting.standardise


def test_a_run_says_how_its_inputs_were_scaled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    flags = ["--clients", "3", "--rounds", "1", "--epochs", "1", "--workers", "0", "--standardise"]
    call("run", "--out", str(run), *flags)
    kept = json.loads((run / "environment.json").read_text())
    assert kept["scale"] == prepare(ExperimentConfig(standardise=True), 0).scale.described()  # pyright: ignore[reportOptionalMemberAccess]
    assert len(kept["source"]) == 64
    capsys.readouterr()
    call("export", str(run), "--site", "0", "--out", str(tmp_path / "model.safetensors"))
    assert f"# inputs: (pixels − {kept['scale']['mean']}) / {kept['scale']['deviation']}" in capsys.readouterr().out
