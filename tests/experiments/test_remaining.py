"""What is missing, from results made by hand."""

from pathlib import Path

from experiments.iclr2021.paper_tables import LOCAL, NEW_5
from experiments.iclr2021.queue import stages
from experiments.iclr2021.remaining import remaining
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import Cell
from fake_results import keep


def rows(folder: Path) -> dict[str, list[str]]:
    lines = remaining(Results(folder)).splitlines()[2:]
    entries = [[entry.strip() for entry in line.strip("|").split("|")] for line in lines]
    return {entry[0]: entry[1:] for entry in entries}


def test_an_estimate_takes_the_time_of_finished_cells_of_the_same_scale_and_as_many_clients(tmp_path: Path) -> None:
    title = next(stage.title for stage in stages() if any(cell.case == NEW_5 for cell in stage.cells))
    before = rows(tmp_path)[title]
    assert (before[0], before[2]) == ("0", "not known")
    for seed, seconds in enumerate((3000.0, 3600.0, 9000.0)):
        keep(tmp_path, Cell(NEW_5, LOCAL, "lite", seed), [0.5], seconds=seconds)
    missing = int(before[1]) - 3
    assert rows(tmp_path)[title] == ["3", str(missing), f"{missing}.0 h"]  # the median is an hour
    assert any(entries[2] == "not known" for entries in rows(tmp_path).values())  # of the full protocol
