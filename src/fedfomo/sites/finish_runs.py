"""Finishing the runs of a call of `federate`, one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from fedfomo.core.round import cohort_size
from fedfomo.report.final_results import scores_of_run
from fedfomo.runs.callbacks import RunBar, track_run
from fedfomo.runs.records import RunRecord
from fedfomo.runs.run import PreparedRun, finish_prepared
from fedfomo.simulation.callbacks import Callbacks
from fedfomo.sites.result import FederationResult, result_of
from fedfomo.sites.seed_runs import RunKeeper, SeedRuns


def finish_seed(runs: SeedRuns, keeper: RunKeeper) -> FederationResult:
    """Finish the runs of one seed."""
    records = {folder: _run_one(folder, run, keeper) for folder, run in runs.prepared.items()}
    if keeper.is_kept:
        _keep_scores(runs, records)
    return result_of(runs, keeper, records)


def _keep_scores(runs: SeedRuns, records: Mapping[Path, RunRecord]) -> None:
    """Keep scores of single examples with each run: `fedfomo report` pairs by them, and has no data to find them."""
    for folder, record in records.items():
        try:
            scores_of_run(folder, record, runs.problem, runs.prepared[folder].algorithm)
        except Exception as error:  # whatever a user's own metric raises: the models are worth more
            warnings.warn(f"{folder} has no scores of single examples ({type(error).__name__}: {error})", stacklevel=2)


def _run_one(folder: Path, run: PreparedRun, keeper: RunKeeper) -> RunRecord:
    folder.mkdir(exist_ok=True)
    sites = len(run.problem.clients)
    metric = run.problem.model.metrics.leading
    title = f"{folder.name.replace('-seed-', ', seed ')}"
    bar = RunBar(
        keeper.console, title, run.simulation.rounds, cohort_size(sites, run.simulation.participation), sites, metric
    )
    shown = bar if keeper.shows_progress else nullcontext()
    facts = {"method": run.method, "seed": run.seed, "rounds": run.simulation.rounds, **run.options}
    with shown, track_run(keeper.track, folder, facts, warnings.warn, metric) as tracked:
        callback = Callbacks(tracked, bar if keeper.shows_progress else None, keeper.callback)
        return finish_prepared(folder, run, callback, warnings.warn)
