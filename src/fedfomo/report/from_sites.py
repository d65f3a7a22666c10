"""From a call of `federate` to what a report is made from."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

from fedfomo.algorithms import make_algorithm
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.datasets.bundled import fingerprint
from fedfomo.report.build import build_report_data
from fedfomo.report.data import ClientFacts, PrivacyFacts, ReportData, Reproduce
from fedfomo.report.inputs import FinalResult, ReportInput
from fedfomo.report.per_example import examine, label_counts
from fedfomo.simulation.client_batching import Timings
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult


@dataclass
class Log:
    """What a run tells about its rounds, kept in memory."""

    lines: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    seconds: dict[int, Mapping[str, float]] = field(default_factory=dict[int, Mapping[str, float]])

    def hear(self, line: dict[str, Any], seconds: Timings) -> None:
        """Keep one round's line."""
        self.lines.append(line)
        self.seconds[line["round"]] = asdict(seconds)


@dataclass(frozen=True)
class FinishedRuns:
    """What `federate` was asked for, and what came of it."""

    names: Sequence[str]
    problem: FederatedProblem
    method: str
    algorithm: AnyAlgorithm
    results: Mapping[str, RunResult]  # by method
    log: Log
    call: Mapping[str, Any]
    metric: str


def site_facts(played: FinishedRuns, notes: Sequence[str]) -> tuple[ReportData, tuple[str, ...]]:
    """Compute what a report shows, and return the notes with what there is to say of that."""
    try:
        return build_report_data(_source(played, notes)), tuple(notes)
    except Exception as error:  # whatever a user's own code raises: hours of training must not be lost to a page
        failed = f"note: the report holds scores alone, since making it failed ({type(error).__name__}: {error})"
        told = (*notes, failed)
        return _scores_alone(played, told), told


def _scores_alone(played: FinishedRuns, notes: Sequence[str]) -> ReportData:
    names, problem, method, results = played.names, played.problem, played.method, played.results
    own, alone = results[method].after_update, results["local"].after_update
    facts = build_report_data(
        ReportInput(
            title=_title(names),
            method=method,
            options={},
            judged_first=(),
            seed=problem.seed,
            rounds_planned=played.call["rounds"],
            clients=_clients(names, problem, None),
            lines=[],
            seconds={},
            ended={},
            affinity=None,
            taken=None,
            own_targets=True,
            reproduce=Reproduce("", "", {}, {}),
            metric=played.metric,
            notes=list(notes),
            privacy=_privacy(problem, results[method]),
        )
    )
    sentences = [
        f"{name}: {own[site].accuracy:.3g}, and alone {alone[site].accuracy:.3g}" for site, name in enumerate(names)
    ]
    why = notes[-1]
    return replace(facts, is_finished=True, is_share=False, sentences=sentences, advice=why, why_not_crossed=why)


def _source(played: FinishedRuns, notes: Sequence[str]) -> ReportInput:
    """Collect what is known of the sites, of the method's run, and of how those beside it ended."""
    names, problem, method, algorithm = played.names, played.problem, played.method, played.algorithm
    results, call, log = played.results, played.call, played.log
    result = results[method]
    missing = "" if "fedavg" in results else "FedAvg was not run beside it: federate(..., beside=('fedavg',)) adds it."
    options: Any = algorithm
    return ReportInput(
        title=_title(names),
        method=method,
        options=asdict(options),
        judged_first=algorithm.judged_first,
        seed=problem.seed,
        rounds_planned=call["rounds"],
        # How many of which label a site holds is not for a page about a private run.
        clients=_clients(names, problem, None if problem.privacy.is_on else label_counts(problem.clients)),
        lines=log.lines,
        seconds=log.seconds,
        ended={
            name: _ended(problem, algorithm if name == method else make_algorithm(name), ended, crosses=name == method)
            for name, ended in results.items()
        },
        affinity=None if result.affinity is None else result.affinity.dense().tolist(),
        taken=None if result.taken is None else result.taken.dense().tolist(),
        own_targets=True,
        reproduce=_reproduce(names, problem, call),
        metric=played.metric,
        notes=list(notes),
        advice=missing,
        privacy=_privacy(problem, result),
    )


def _title(names: Sequence[str]) -> str:
    return f"{len(names)} sites: {', '.join(names[:6])}{' and others' if len(names) > 6 else ''}"


def _clients(
    names: Sequence[str], problem: FederatedProblem, counts: tuple[list[list[int]], list[list[int]]] | None
) -> list[ClientFacts]:
    return [
        ClientFacts(
            name=name,
            train=len(own.train),
            validation=len(own.validation),
            test=len(own.test),
            train_labels=counts[0][site] if counts else None,
            target_labels=counts[1][site] if counts else None,
        )
        for site, (name, own) in enumerate(zip(names, problem.clients, strict=True))
    ]


def _ended(problem: FederatedProblem, algorithm: AnyAlgorithm, result: RunResult, crosses: bool) -> FinalResult:
    thetas = [result.models[client] for client in sorted(result.models)]
    traffic = result.traffic
    return FinalResult(
        scores=result.after_update,
        bytes_moved=traffic.bytes_down + traffic.bytes_up,
        gradients=result.gradients,
        examined=examine(problem.model_of(algorithm), thetas, problem.clients, crosses),
    )


def _privacy(problem: FederatedProblem, result: RunResult) -> PrivacyFacts | None:
    if result.spent is None:
        return None
    training = max(spent.training for spent in result.spent.values())
    validation = max(spent.validation for spent in result.spent.values())
    return PrivacyFacts(_guaranteed(training), _guaranteed(validation), problem.privacy.delta)


def _guaranteed(epsilon: float) -> float | None:
    return epsilon if math.isfinite(epsilon) else None


def _reproduce(names: Sequence[str], problem: FederatedProblem, call: Mapping[str, Any]) -> Reproduce:
    arguments = ", ".join(f"{name}={_spelled(value)}" for name, value in call.items())
    hashes = {
        name: fingerprint(own.train, own.validation, own.test) for name, own in zip(names, problem.clients, strict=True)
    }
    libraries = ("fedfomo", "torch", "numpy", "safetensors")
    versions = {"python": platform.python_version(), **{name: version(name) for name in libraries}}
    return Reproduce(f"fedfomo.federate(make_model, sites, {arguments})", "", hashes, versions)


def _spelled(value: Any) -> str:
    # A function is the user's own: its name is what finds it again, which its address does not.
    return value.__name__ if hasattr(value, "__name__") else repr(value)
