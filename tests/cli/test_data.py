"""The commands about data, and runs on a data set that a user brings with groups made beforehand."""

import hashlib
import json
import re
from pathlib import Path

import pytest

from fedfomo.cli.main import main
from fedfomo.datasets import latent_groups, scenarios
from fedfomo.datasets.download import ARCHIVES, Archive
from made_up_sets import ship_groups, write_toys

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
    return write_toys(tmp_path / "sets")


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
    assert "latent_groups build --dataset toys --data FOLDER --distributions 5`" in capsys.readouterr().err


def test_a_summary_is_shown_and_written(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "new" / "summary.json"
    assert call("scenarios", "show", "--scenario", "ood", "--seed", "1", "--json", str(file)) == 0
    printed = capsys.readouterr().out
    assert "digits, ood, 5 distributions, 15 clients, seed 1" in printed
    assert re.search(r"label EMD +1\.\d\d \(Σ\|p − q\|\), \d\.\d\d as the authors count", printed)
    summary = json.loads(file.read_text())
    assert (summary["dataset"], summary["seed"], len(summary["clients"])) == ("digits", 1, 15)
    assert f"{100 * summary['share_out_of_distribution']:.0f} % of the clients" in printed


def test_notes_do_not_flood_the_terminal(capsys: Captured) -> None:
    assert call("scenarios", "show", "--scenario", "dirichlet", "--clients", "900") == 0
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) < 40
    assert "notes of this kind" in printed


def test_a_set_is_downloaded(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "toys.gz").write_bytes(b"0123456789")
    digest = hashlib.sha256(b"0123456789").hexdigest()
    monkeypatch.setitem(ARCHIVES, "toys", (Archive("toys.gz", 10, digest, ("http://127.0.0.1:9/",)),))
    assert call("data", "get", "toys") == 0
    assert "fedfomo run --dataset toys --data data" in capsys.readouterr().out
    (tmp_path / "data" / "toys.gz").unlink()
    assert call("data", "get", "toys") == 2
    assert "fetch http://127.0.0.1:9/toys.gz on another machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["data", "fetch"], "unknown word after 'data': 'fetch'"),
        (["data", "get", "mnist", "--folder", "a file"], "cannot make the folder a file, since a file is no folder"),
        (["scenarios", "show", "--dataset", "../x", "--data", "."], "'../x' is no name of a data set"),
        (["scenarios", "show", "--data-fraction", "1e-9"], "data_fraction is 1e-09, which leaves none: give more"),
        (["data", "get", "cifar"], "unknown data set 'cifar': did you mean 'cifar10'?"),
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
    Path("a file").touch()
    assert call(*arguments) == 2
    captured = capsys.readouterr()
    assert line in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


@pytest.mark.parametrize("words", [["data"], ["scenarios", "--help"], ["deploy"]])
def test_commands_name_their_words(words: list[str], capsys: Captured) -> None:
    assert call(*words) == 0
    assert f"usage: fedfomo {words[0]} " in capsys.readouterr().out
