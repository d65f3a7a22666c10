"""How finished runs ended: scores, what final models do on single test examples, and gains over training alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.errors import InputError
from fedfomo.report.data import FinalResult
from fedfomo.report.per_example import PerExampleScores, read_scores, score_examples, write_scores
from fedfomo.report.select_run import is_part
from fedfomo.runs.description import describe_run
from fedfomo.runs.final_models import load_models
from fedfomo.runs.own_sites import is_of_sites, read_sites_config
from fedfomo.runs.provenance import read_environment, same_clients
from fedfomo.runs.records import RunRecord, read_record
from fedfomo.simulation.problem import FederatedProblem


def final_result(
    folder: Path, problem: FederatedProblem | None, algorithm: AnyAlgorithm | None, crosses: bool
) -> FinalResult:
    """Read how a run ended, with every seed of the same method."""
    record = read_record(folder)
    traffic = record.traffic
    of_seeds = {run: read_record(run) for run in _runs_of_seeds(folder)}
    return FinalResult(
        scores=record.after_update,
        bytes_moved=traffic.bytes_down + traffic.bytes_up,
        gradients=record.gradients,
        examples=scores_of_run(folder, record, problem, algorithm, crosses),
        seed_means={other.seed: other.summary().mean for other in of_seeds.values()},
        seed_gains=_gains(of_seeds),
        seed_metrics={other.seed: _metrics(other) for other in of_seeds.values()},
        is_of_sets=_is_of_sets(folder, problem),
    )


def _is_of_sets(folder: Path, problem: FederatedProblem | None) -> bool:
    """Tell whether the primary metric is of whole sets; older folders do not say so themselves."""
    said = read_environment(folder).get("is_of_sets")
    if said is not None:
        return bool(said)
    if problem is not None:
        return not problem.model.metrics.is_per_example
    return is_of_sites(folder) and (own := read_sites_config(folder)).metric in own.metrics


def scores_of_run(
    folder: Path,
    record: RunRecord,
    problem: FederatedProblem | None,
    algorithm: AnyAlgorithm | None = None,
    crosses: bool = False,
) -> PerExampleScores | None:
    """Return what final models do on single test examples: as kept, or found out now and kept; None: it is unknown."""
    kept = folder / "examination.json"
    if kept.exists():
        found = read_scores(kept)
        is_enough = found.cross is not None or bool(found.why_not_crossed) or not (crosses and problem)
        if is_enough and _is_of_run(found, record):
            return found
    algorithm = algorithm or algorithm_of(folder)
    if problem is None or algorithm is None:
        return None
    model = problem.model_of(algorithm)
    thetas = load_models(folder, model, record)
    if thetas is None:
        return None
    found = score_examples(model, thetas, problem.clients, crosses)
    if problem.privacy.is_on:  # how many of which label a client holds is not for the folder of a private run
        found = replace(found, by_class=None)
    if not _is_of_run(found, record):
        return None
    write_scores(kept, found)
    return found


def _is_of_run(found: PerExampleScores, record: RunRecord) -> bool:
    """Tell whether models were tried on as many test examples as the run itself tried them on."""
    tried = [record.after_update[client].num_examples for client in sorted(record.after_update)]
    return [len(figures) for figures in found.figures] == tried


def _runs_of_seeds(folder: Path) -> list[Path]:
    """Find the finished runs of the same method with every seed of a comparison."""
    if not is_part(folder):
        return [folder]
    label = folder.name.rpartition("-seed-")[0]
    return [other for other in sorted(folder.parent.glob(f"{label}-seed-*")) if (other / "result.json").exists()]


def _metrics(record: RunRecord) -> dict[str, float]:
    """Return the mean of each metric over clients."""
    values: dict[str, list[float]] = {}
    for score in record.after_update.values():
        for name, value in score.metrics.items():
            values.setdefault(name, []).extend([value] if math.isfinite(value) else [])
    return {name: fmean(known) for name, known in values.items() if known}


def _gains(runs: Mapping[Path, RunRecord]) -> dict[int, list[float]]:
    """Return for every seed what its clients gained over training alone, as far as that was run with the same ones."""
    gains: dict[int, list[float]] = {}
    for run, record in runs.items():
        local = run.parent / f"local-seed-{record.seed}"
        if (local / "result.json").exists() and same_clients(read_environment(run), read_environment(local)):
            alone = read_record(local).figures()
            gaps = [value - alone[client] for client, value in record.figures().items()]
            gains[record.seed] = [gap for gap in gaps if math.isfinite(gap)]
    return gains


def algorithm_of(folder: Path) -> AnyAlgorithm | None:
    """Make a run's algorithm again; None: it was an object, or of a file, that is not to be found here."""
    try:
        return describe_run(folder).make_algorithm()
    except InputError:
        return None
