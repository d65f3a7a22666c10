"""Computing cells in front of a person, or of nobody for a night."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from experiments.iclr2021.cells import Cell
from experiments.iclr2021.results import Results
from experiments.iclr2021.running import compute
from fedfomo.cli.progress import duration
from fedfomo.cli.terminal import console, fail, warn
from fedfomo.core.round import cohort_size
from fedfomo.errors import InputError, require
from fedfomo.runs.config import ExperimentConfig, RunConfig
from fedfomo.runs.progress import RunBar
from fedfomo.runs.setup import Prepared, prepare

if TYPE_CHECKING:
    from experiments.iclr2021.__main__ import ReproduceConfig


def compute_all(cells: Sequence[Cell], config: ReproduceConfig, results: Results) -> None:
    """Compute what is missing, one cell after the other; one that fails is named, and the others go on."""
    waiting = [cell for cell in cells if not results.has(cell)]
    needs_data = any(cell.config().setting.dataset != "digits" for cell in waiting)
    require(config.data is not None or not needs_data, "give the folder of the data sets: --data FOLDER")
    console.print(f"{len(cells) - len(waiting)} of {len(cells)} cells are done")
    failed: list[Cell] = []
    latest: tuple[ExperimentConfig, int, Prepared] | None = None
    for number, cell in enumerate(waiting):
        so_far = Results(config.results)  # what has just been computed makes a better forecast
        left = f"{len(waiting) - number} cells to go, about {duration(so_far.forecast(waiting[number:]))}"
        console.print(f"{cell.name}: forecast {duration(so_far.forecast([cell]))}; {left}", soft_wrap=True)
        try:
            planned = cell.config(config.data, config.workers)
            if latest is None or latest[:2] != (planned.setting, planned.seed):
                latest = planned.setting, planned.seed, prepare(planned.setting, planned.seed)
            _compute(cell, planned, latest[2], config)
        except InputError as error:
            failed.append(cell)
            warn(f"{cell.name}: {error}")
        except OSError:  # a disk that is full, for one, would fail all the others too
            raise
        except Exception:  # a night's work must not end with the first method that breaks
            failed.append(cell)
            console.print_exception()
    if failed:
        fail(f"cells that failed, {len(failed)} in all: {', '.join(cell.name for cell in failed)}", 1)


def _compute(cell: Cell, planned: RunConfig, prepared: Prepared, config: ReproduceConfig) -> None:
    plan, clients = prepared.plan, len(prepared.problem.clients)
    title = f"{cell.variant.name}, {cell.case.name}, seed {cell.seed}"
    cohort = cohort_size(clients, plan.participation)
    with RunBar(console, title, plan.rounds, cohort, clients) as bar:
        compute(cell, planned, prepared, config.results, config.work, bar, warn)
