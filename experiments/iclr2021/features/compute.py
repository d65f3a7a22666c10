"""Computing cells on features: a run in memory takes seconds, and leaves one line."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.iclr2021.features.cells import (
    CONTENDERS,
    CORE,
    TUNING_REGIMES,
    TUNING_SEEDS,
    Contender,
    FeatureCell,
    Regime,
)
from experiments.iclr2021.features.store import TUNING, Choice, Store
from fedfomo.algorithms import make_algorithm
from fedfomo.cli.terminal import console
from fedfomo.core.client import ClientId
from fedfomo.core.model import Score
from fedfomo.datasets.scenario_summary import INFORMATIVE
from fedfomo.runs.provenance import environment_of
from fedfomo.runs.setup import Prepared, prepare
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.simulate import simulate

LAST = 5
"""So many readings are averaged, beside the last one."""
DIGITS = 4
Item = TypeVar("Item")


class Readings(Callback):
    """Keeps every round's accuracies after the federated update."""

    def __init__(self) -> None:
        self.rounds: list[dict[ClientId, float]] = []

    def round_done(self, finished: FinishedRound) -> None:
        """Keep those of one round that is scored; before the first there was no update."""
        if finished.round and finished.after_update:
            self.rounds.append(accuracies(finished.after_update))


def accuracies(scores: Mapping[ClientId, Score]) -> dict[ClientId, float]:
    """Return the accuracies of clients that have test data."""
    return {client: score.metric for client, score in scores.items() if not math.isnan(score.metric)}


def mean_of_last(readings: Sequence[Mapping[ClientId, float]], number: int = LAST) -> dict[ClientId, float] | None:
    """Return each client's mean over the last readings; None where some clients are missing in them."""
    last = readings[-number:]
    if len(last) < number or any(reading.keys() != last[-1].keys() for reading in last):
        return None
    return {client: fmean(reading[client] for reading in last) for client in last[-1]}


@lru_cache(maxsize=1)
def _prepared(regime: Regime, seed: int, data: Path) -> Prepared:
    return prepare(regime.config(data, learning_rate=0.1), seed)


def compute(cell: FeatureCell, choice: Choice, data: Path) -> dict[str, Any]:
    """Run a cell and return its line."""
    began = time.process_time()
    prepared = _prepared(cell.regime, cell.seed, data)
    setting = cell.regime.config(data, choice.learning_rate)
    problem = replace(prepared.problem, trainer=setting.training)
    options = dict(choice.options)
    if "num_downloads" in options:
        options["num_downloads"] = min(options["num_downloads"], len(problem.clients) - 1)
    readings = Readings()
    algorithm = make_algorithm(cell.contender.method, options)
    result = simulate(problem, algorithm, prepared.simulation, callback=readings)
    model = problem.model_of(algorithm)
    validation = {
        number: model.score(result.models[number], client.validation).metric
        for number, client in enumerate(problem.clients)
        if len(client.validation)
    }
    final = accuracies(result.after_update)
    last = mean_of_last([*readings.rounds, final])
    about = environment_of(prepared, setting)
    constants = [one for one in about["constant"] if one is not None]
    return {
        "method": cell.contender.name,
        "seed": cell.seed,
        "learning_rate": choice.learning_rate,
        "options": dict(choice.options),
        "validation": round(100 * fmean(validation.values()), DIGITS),
        "informative": sum(one < INFORMATIVE for one in constants),
        "constant": round(100 * fmean(constants), 2),
        "curve": [round(fmean(reading.values()), DIGITS) for reading in [*readings.rounds, final]],
        "last": _by_client(final, len(problem.clients)),
        "last_five": None if last is None else _by_client(last, len(problem.clients)),
        "refusals": sum(result.refusals.values()),
        "seconds": round(time.process_time() - began, 1),
        "source": about["source"][:12],
    }


def _by_client(values: Mapping[ClientId, float], clients: int) -> list[float | None]:
    return [round(values[client], DIGITS) if client in values else None for client in range(clients)]


def tuning_cells() -> list[tuple[FeatureCell, Choice]]:
    """Return the runs among which settings are chosen."""
    return [
        (FeatureCell(regime, contender, seed), Choice(rate, options))
        for contender in sorted(CONTENDERS.values(), key=lambda one: one.name not in CORE)
        for regime in TUNING_REGIMES
        if contender.fits(regime)
        for seed in TUNING_SEEDS
        for rate, options in (*contender.grid, *contender.further)
    ]


def tune(store: Store, methods: Sequence[str], data: Path, processes: int) -> None:
    """Try methods' settings; the lines keep what chooses, and nothing of the test data."""
    done = {(trial.regime, trial.contender, trial.seed, str(trial.choice)) for trial in store.trials()}
    waiting = [
        (cell, choice)
        for cell, choice in tuning_cells()
        if cell.contender.name in methods
        and (cell.regime.name, cell.contender.name, cell.seed, str(choice)) not in done
    ]
    for cell, line in _all(waiting, data, processes, "tuning"):
        kept = {name: line[name] for name in ("method", "seed", "learning_rate", "options", "validation", "seconds")}
        store.append(TUNING, {"regime": cell.regime.name, **kept})


def run(store: Store, cells: Sequence[FeatureCell], data: Path, processes: int) -> None:
    """Compute the cells that are missing, in order."""
    choices = {contender.name: store.choice(contender) for contender in _contenders(cells)}
    waiting = [(cell, choices[cell.contender.name]) for cell in cells if not store.has(cell)]
    console.print(f"{len(cells) - len(waiting)} of {len(cells)} cells are done")
    for cell, line in _all(waiting, data, processes, "features"):
        store.append(cell.regime.name, line)


def _contenders(cells: Iterable[FeatureCell]) -> list[Contender]:
    return [*{cell.contender.name: cell.contender for cell in cells}.values()]


def _all(
    waiting: Sequence[tuple[FeatureCell, Choice]], data: Path, processes: int, title: str
) -> Iterable[tuple[FeatureCell, dict[str, Any]]]:
    """Yield every cell with its line as it comes; what was yielded is kept if the rest is stopped."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool,
    ):
        task = progress.add_task(title, total=len(waiting))
        left = iter(waiting)
        # Few at a time, so that Ctrl-C does not wait for the whole queue.
        running = {pool.submit(compute, cell, choice, data): cell for cell, choice in islice(left, 2 * processes)}
        while running:
            future = next(as_completed(running))
            cell = running.pop(future)
            for following, choice in islice(left, 1):
                running[pool.submit(compute, following, choice, data)] = following
            yield cell, future.result()
            name = f"{title}: {cell.regime.name}, {cell.contender.name}, seed {cell.seed}"
            progress.update(task, advance=1, description=name)
