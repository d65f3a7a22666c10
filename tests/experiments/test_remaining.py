"""What is missing, from results made by hand."""

from pathlib import Path

from experiments.iclr2021.paper_tables import LATENT_5, LOCAL
from experiments.iclr2021.remaining import remaining
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import Cell
from fake_results import keep


def rows(folder: Path) -> dict[str, list[str]]:
    lines = remaining(Results(folder)).splitlines()[2:]
    entries = [[entry.strip() for entry in line.strip("|").split("|")] for line in lines]
    return {entry[0]: entry[1:] for entry in entries}


def test_an_estimate_takes_the_time_of_finished_cells(tmp_path: Path) -> None:
    before = rows(tmp_path)["CNN, a fifth of the data, first seed"]
    assert (before[0], before[2]) == ("0", "–")
    keep(tmp_path, Cell(LATENT_5, LOCAL, "lite"), [0.5], seconds=3600.0)
    after = rows(tmp_path)["CNN, a fifth of the data, first seed"]
    missing = int(before[1]) - 1
    assert after == ["1", str(missing), f"{missing} h on two cores"]


def test_features_without_cells_have_no_estimate(tmp_path: Path) -> None:
    found = rows(tmp_path)["features, 3 seeds"]
    assert (found[0], found[2]) == ("0", "–")
