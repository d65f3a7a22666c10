"""How much of everything is missing, and what it would take, by what finished cells took."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean

from experiments.iclr2021.features.cells import BREADTH, FeatureCell, queue
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.queue import stages
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import SHOWN, Cell

WORDS = {"paper": "CNN, full protocol", "lite": "CNN, a fifth of the data"}


def remaining(results: Results) -> str:
    """Return a table: what is missing of the queue and of features, and about how long it would take."""
    lines = ["| | cells done | missing | would take about |", "| --- | ---: | ---: | ---: |"]
    for scale in SHOWN:
        planned = [cell for stage in stages() for cell in stage.cells if cell.scale == scale]
        times = _times(planned, results)
        for is_first, words in ((True, "first seed"), (False, "further seeds")):
            cells = [cell for cell in planned if (cell.seed == 0) == is_first]
            lines.append(f"| {WORDS[scale]}, {words} | {_cnn(cells, times, results)} |")
    store = Store(results.folder / "features")
    everything = queue()
    for seeds, words in ((range(BREADTH), f"{BREADTH} seeds"), (range(BREADTH, 99), "up to ten seeds")):
        lines.append(f"| features, {words} | {_features([c for c in everything if c.seed in seeds], store)} |")
    return "\n".join(lines)


def _times(cells: list[Cell], results: Results) -> dict[int, list[float]]:
    """Return how many seconds finished cells took, by their number of clients."""
    took: dict[int, list[float]] = defaultdict(list)
    for cell in cells:
        result = results.get(cell)
        if result is not None:
            took[cell.case.clients].append(result.seconds)
    return took


def _cnn(cells: list[Cell], took: dict[int, list[float]], results: Results) -> str:
    """Count, and estimate by the mean time of finished cells of as many clients."""
    missing = [cell.case.clients for cell in cells if not results.has(cell)]
    every = [seconds for times in took.values() for seconds in times]
    counts = f"{len(cells) - len(missing)} | {len(missing)}"
    if not every:
        return f"{counts} | –"
    seconds = sum(fmean(took.get(clients) or every) for clients in missing)
    return f"{counts} | {seconds / 3600:.0f} h on two cores"


def _features(cells: list[FeatureCell], store: Store) -> str:
    lines = [line for name in {cell.regime.name for cell in cells} for line in store.lines(name)]
    done = {
        (name, line["method"], line["seed"]) for name in {c.regime.name for c in cells} for line in store.lines(name)
    }
    missing = sum((cell.regime.name, cell.contender.name, cell.seed) not in done for cell in cells)
    hours = f"{missing * fmean(line['seconds'] for line in lines) / 3600:.1f} h of one core" if lines else "–"
    return f"{len(cells) - missing} | {missing} | {hours}"
