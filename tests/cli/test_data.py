"""The commands about data, and runs on a data set that a user brings with groups made beforehand."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from fedfomo.cli.main import main
from fedfomo.core import networks
from fedfomo.datasets import embedding, latent_groups, scenarios
from fedfomo.datasets.download import ARCHIVES, Archive
from fedfomo.datasets.embedding import Schedule
from fedfomo.datasets.latent_groups import Assignments, find_groups, write_groups
from fedfomo.datasets.readers import read_folder

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _away_from_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDFOMO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(latent_groups, "SHIPPED", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a made-up set of ten classes that counts as a large one."""
    monkeypatch.setattr(scenarios, "SMALL_SET", 100)
    rng = np.random.default_rng(0)
    labels = np.arange(1200) % 10
    images = (rng.random((1200, 8, 8, 3)) * 100 + 15 * labels[:, None, None, None]).astype(np.uint8)
    (tmp_path / "sets").mkdir()
    np.savez(
        tmp_path / "sets" / "toys.npz",
        x_train=images[:1000],
        y_train=labels[:1000],
        x_test=images[1000:],
        y_test=labels[1000:],
    )
    return tmp_path / "sets"


def ship_groups(folder: Path) -> None:
    """Ship groups of neighbouring classes."""
    data = read_folder(folder, "toys")
    train, test = data.train.labels.numpy(), data.test.labels.numpy()
    groups = {number: (train * number // 10, test * number // 10) for number in (2, 3, 4, 5, 10)}
    write_groups(Assignments(data.fingerprint, 0.9, groups), latent_groups.SHIPPED / "toys.npz")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.mark.parametrize("scenario", ["latent", "ood", "pathological"])
@pytest.mark.parametrize(("clients", "participation"), [("15", "1"), ("100", "0.1")])
def test_runs_start_from_shipped_groups(
    scenario: str, clients: str, participation: str, folder: Path, tmp_path: Path, capsys: Captured
) -> None:
    ship_groups(folder)
    where = ["--dataset", "toys", "--data", str(folder), "--scenario", scenario, "--distributions", "5"]
    who = ["--clients", clients, "--participation", participation, "--share-fraction", "0.05"]
    length = ["--rounds", "2", "--epochs", "1", "--workers", "0"]
    assert call("run", *where, *who, *length, "--out", str(tmp_path / "run")) == 0
    assert f"toys, {scenario}: {clients} clients" in capsys.readouterr().out
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert len(result["after_update"]) == int(clients)


def test_without_groups_the_way_out_is_named(folder: Path, capsys: Captured) -> None:
    assert call("run", "--dataset", "toys", "--data", str(folder)) == 2
    assert "run `fedfomo latent build --dataset toys --data FOLDER`" in capsys.readouterr().err


def test_groups_are_built_and_then_found(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "_EMBEDDING_WIDTH", 16)
    monkeypatch.setattr(networks, "_VGG11_WIDTHS", ((4,), (8,)))
    monkeypatch.setattr(embedding, "schedule_for", lambda _: Schedule(sides=(8, 8), batch_size=100, padding=1))
    where = ["--dataset", "toys", "--data", str(folder)]
    assert call("latent", "build", *where, "--distributions", "2", "5") == 0
    printed = capsys.readouterr().out
    assert re.search(r"step 20/20: loss \d.* left", printed)
    assert re.search(r"the network classifies \d+\.\d\d % of the test images", printed)
    assert re.search(r"^2 groups of \d+, \d+ images", printed, re.MULTILINE)
    data = read_folder(folder, "toys")
    for number in (2, 5):
        found = find_groups(data, number)
        assert found is not None
        assert set(np.concatenate(found).tolist()) == set(range(number))
    assert call("scenarios", "show", *where) == 0
    assert "toys, latent, 5 distributions, 15 clients, seed 0" in capsys.readouterr().out

    # The same work under another name for the file trains nothing again.
    assert call("latent", "build", *where, "--distributions", "2", "--out", "elsewhere/groups.npz") == 0
    assert "step" not in capsys.readouterr().out
    assert Path("elsewhere/groups.npz").exists()


def test_an_interrupted_build_says_how_to_go_on(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(latent_groups, "build_groups", interrupt)
    assert call("latent", "build", "--dataset", "toys", "--data", str(folder)) == 130
    assert "the same command goes on from the last checkpoint" in capsys.readouterr().out


def test_the_table_is_markdown(folder: Path, capsys: Captured) -> None:
    ship_groups(folder)
    assert call("latent", "table", "--dataset", "toys", "--data", str(folder)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 5 + 1
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)
    # Two classes a client of ten equal ones: 2·0.4 + 8·0.1, of which 0.8 counts twice.
    assert lines[5] == "| 5 | latent | 240, 240, 240, 240, 240 | 1.60 | 2.40 |  |"


def test_a_card_is_shown_and_written(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "new" / "card.json"
    assert call("scenarios", "show", "--scenario", "ood", "--seed", "1", "--json", str(file)) == 0
    printed = capsys.readouterr().out
    assert "digits, ood, 5 distributions, 15 clients, seed 1" in printed
    assert re.search(r"label EMD +1\.\d\d \(Σ\|p − q\|\), \d\.\d\d as the authors count", printed)
    card = json.loads(file.read_text())
    assert (card["dataset"], card["seed"], len(card["clients"])) == ("digits", 1, 15)
    assert f"{100 * card['share_out_of_distribution']:.0f} % of the clients" in printed


def test_notes_do_not_flood_the_terminal(capsys: Captured) -> None:
    assert call("scenarios", "show", "--scenario", "dirichlet", "--clients", "900") == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) < 40
    assert "notes of this kind" in printed


def test_a_set_is_downloaded(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mirror").mkdir()
    (tmp_path / "mirror" / "toys.gz").write_bytes(b"0123456789")
    digest = hashlib.sha256(b"0123456789").hexdigest()
    monkeypatch.setitem(ARCHIVES, "toys", (Archive("toys.gz", 10, digest, (f"{tmp_path.as_uri()}/mirror/",)),))
    assert call("data", "get", "toys") == 0
    printed = capsys.readouterr().out
    assert "toys.gz" in printed
    assert "fedfomo run --dataset toys --data data" in printed
    assert Path("data/toys.gz").read_bytes() == b"0123456789"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["data", "fetch"], "unknown word after 'data': 'fetch'"),
        (["data", "get", "cifar"], "unknown data set 'cifar': did you mean 'cifar10'?"),
        (["latent", "biuld"], "unknown word after 'latent': 'biuld': did you mean 'build'?"),
        (["latent", "build", "--dataset", "x", "--data", "nowhere"], "there is no folder nowhere"),
        (["latent", "build", "--dataset", "x", "--data", ".", "--out", "."], ". is a folder: give a file"),
        (["latent", "table", "--dataset", "cifar10"], "where is dataset 'cifar10'?"),
        (["deploy", "add_site"], "unknown word after 'deploy': 'add_site': did you mean 'add-site'?"),
        (["scenarios", "shwo"], "did you mean 'show'?"),
        (["scenarios", "show", "--json", "."], ". is a folder: give a file"),
        (["scenarios", "show", "--dataset", "cifar10"], "where is dataset 'cifar10'?"),
        (["scenarios", "show", "--data", "."], "name the set with --dataset, or leave out --data"),
        (["run", "--data", "."], "digits ships with the library and is not read from "),
        (["scenarios", "show", "--representation", "classes"], "give 10 distributions"),
        (["scenarios", "show", "--share-fraction", "2"], "share_fraction is 2.0"),
    ],
)
def test_bad_input_gets_one_clear_line(arguments: list[str], line: str, capsys: Captured) -> None:
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert line in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


@pytest.mark.parametrize("words", [["latent"], ["data"], ["latent", "--help"], ["scenarios", "--help"], ["deploy"]])
def test_commands_name_their_words(words: list[str], capsys: Captured) -> None:
    assert call(*words) == 0
    assert f"usage: fedfomo {words[0]} " in capsys.readouterr().out
