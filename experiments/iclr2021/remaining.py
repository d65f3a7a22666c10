"""What of the queue is missing, and how long it would take, by what finished cells took."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import median

from experiments.iclr2021.queue import stages
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import Cell

Kind = tuple[str, int]
"""A scale and a number of clients: what decides how long a cell takes."""


def remaining(results: Results) -> str:
    """Return a table of the queue's stages: how much is missing of each, and about how long it would take."""
    lines = ["| stage of the queue | cells done | missing | would take about |", "| --- | ---: | ---: | ---: |"]
    found = stages()
    times = _times((cell for stage in found for cell in stage.cells), results)
    for stage in found:
        missing = [cell for cell in stage.cells if not results.has(cell)]
        done = len(stage.cells) - len(missing)
        lines.append(f"| {stage.title} | {done} | {len(missing)} | {_duration(missing, times)} |")
    return "\n".join(lines)


def _times(cells: Iterable[Cell], results: Results) -> Mapping[Kind, float]:
    """Return the median of the seconds that finished cells of each kind took."""
    took: dict[Kind, list[float]] = defaultdict(list)
    for cell in cells:
        result = results.get(cell)
        if result is not None:
            took[_kind(cell)].append(result.seconds)
    return {kind: median(times) for kind, times in took.items()}


def _duration(missing: Iterable[Cell], times: Mapping[Kind, float]) -> str:
    """Add up the times of cells; none is known of a kind of which no cell is finished."""
    kinds = [_kind(cell) for cell in missing]
    if not kinds:
        return ""
    if any(kind not in times for kind in kinds):
        return "not known"
    return f"{sum(times[kind] for kind in kinds) / 3600:.1f} h"


def _kind(cell: Cell) -> Kind:
    return cell.scale, cell.case.clients
