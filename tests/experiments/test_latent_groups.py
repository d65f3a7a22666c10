"""The paper's recipe from images to groups: trained, embedded, clustered, kept where runs find them."""

import re
from pathlib import Path

import numpy as np
import pytest

from experiments.iclr2021.latent_groups import __main__ as command
from experiments.iclr2021.latent_groups import build
from experiments.iclr2021.latent_groups.build import build_groups, distance_table
from experiments.iclr2021.latent_groups.embedding import Progress, Schedule
from fedfomo.cli.main import main, run_and_exit
from fedfomo.core import networks
from fedfomo.datasets import latent_groups, scenarios
from fedfomo.datasets.bundled import load_digits
from fedfomo.datasets.latent_groups import load_groups
from fedfomo.datasets.readers import read_folder
from fedfomo.errors import InputError
from made_up_sets import made_up, ship_groups, write_toys

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
    """Run the command that makes groups; `fedfomo scenarios` if that is the first argument."""
    with pytest.raises(SystemExit) as ended:
        main(arguments) if arguments[0] == "scenarios" else run_and_exit(command.main, arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_more_groups_than_images_are_refused_before_any_training(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="201 groups of 200 images"):
        build_groups(made_up(), tmp_path / "work", Schedule(), (2, 201))
    assert not (tmp_path / "work").exists()


def test_a_small_set_goes_through_the_whole_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "_EMBEDDING_WIDTH", 16)
    monkeypatch.setattr(networks, "_VGG11_WIDTHS", ((4,), (8,)))
    data = made_up(num_classes=2)
    schedule = Schedule(sides=(8,) * 8, batch_size=20, padding=1)
    reports: list[Progress] = []
    said: list[str] = []
    built = build_groups(data, tmp_path / "work", schedule, (2, 3), reports.append, said.append)
    assert reports[-1].step == reports[-1].steps == 64
    assert built.fingerprint == data.fingerprint
    assert built.accuracy > 0.9
    for number, (train, test) in built.groups.items():
        assert (len(train), len(test)) == (160, 40)
        assert set(np.concatenate([train, test]).tolist()) == set(range(number))
    # The network tells the classes apart, so two groups are the two classes.
    train, labels = built.groups[2][0], data.train.labels.numpy()
    assert max(np.mean(train == labels), np.mean(train != labels)) > 0.9
    assert said[0] == f"the network classifies {100 * built.accuracy:.2f} % of the test images correctly"
    assert said[1].startswith("2 groups of ")
    # All work is kept: a second build trains nothing and finds the same.
    reports.clear()
    again = build_groups(data, tmp_path / "work", schedule, (2, 3), reports.append)
    assert not reports
    for number in (2, 3):
        np.testing.assert_array_equal(again.groups[number][0], built.groups[number][0])


def test_groups_are_built_and_then_found(folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "_EMBEDDING_WIDTH", 16)
    monkeypatch.setattr(networks, "_VGG11_WIDTHS", ((4,), (8,)))
    monkeypatch.setattr(command, "schedule_for", lambda _: Schedule(sides=(8, 8), batch_size=100, padding=1))
    where = ["--dataset", "toys", "--data", str(folder)]
    assert call("build", *where, "--distributions", "2", "5") == 0
    printed = capsys.readouterr().out
    assert re.search(r"step 20/20: loss \d.* left", printed)
    assert re.search(r"the network classifies \d+\.\d\d % of the test images", printed)
    assert re.search(r"^2 groups of \d+, \d+ images", printed, re.MULTILINE)
    data = read_folder(folder, "toys")
    for number in (2, 5):
        found = load_groups(data, number)
        assert found is not None
        assert set(np.concatenate(found).tolist()) == set(range(number))
    assert call("scenarios", "show", *where) == 0
    assert "toys, latent, 5 distributions, 15 clients, seed 0" in capsys.readouterr().out

    # The same work under another name for the file trains nothing again.
    assert call("build", *where, "--distributions", "2", "--out", "elsewhere/groups.npz") == 0
    assert "step" not in capsys.readouterr().out
    assert Path("elsewhere/groups.npz").exists()


def test_an_interrupted_build_says_how_to_go_on(
    folder: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "build_groups", interrupt)
    assert call("build", "--dataset", "toys", "--data", str(folder)) == 130
    assert "the same command goes on from the last checkpoint" in capsys.readouterr().out


def test_the_table_is_markdown(folder: Path, capsys: Captured) -> None:
    ship_groups(folder)
    assert call("table", "--dataset", "toys", "--data", str(folder)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + 5 + 1
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)
    # Two classes a client of ten equal ones: 2·0.4 + 8·0.1, of which 0.8 counts twice.
    assert lines[5] == "| 5 | latent | 240, 240, 240, 240, 240 | 1.60 | 2.40 |  |"


def test_the_table_has_a_row_for_each_number_and_one_for_classes() -> None:
    lines = distance_table(load_digits(), clients=15, seed=0).splitlines()
    assert len({line.count(" | ") for line in lines}) == 1
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
    assert [row[:2] for row in rows] == [
        *[[number, "latent"] for number in ("2", "3", "4", "5", "10")],
        ["10", "classes"],
    ]
    for number, _, sizes, *_ in rows:
        parts = [int(size.replace(",", "")) for size in sizes.split(", ")]
        assert len(parts) == int(number)
        assert sum(parts) == 1797


@pytest.mark.parametrize("number", [0, 257])
def test_numbers_that_a_file_cannot_hold_are_refused_before_any_training(number: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"{number} groups: give 1 to 256"):
        build_groups(made_up(), tmp_path / "work", Schedule(), (number,))
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["build", "--dataset", "x", "--data", "nowhere"], "there is no folder nowhere"),
        (["build", "--dataset", "x", "--data", ".", "--out", "."], ". is a folder: give a file"),
        (["table", "--dataset", "cifar10"], "where is dataset 'cifar10'?"),
    ],
)
def test_bad_input_gets_one_clear_line(arguments: list[str], line: str, capsys: Captured) -> None:
    assert call(*arguments) == 2
    assert line in capsys.readouterr().err
