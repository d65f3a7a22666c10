"""From the folder of a run, with those of the runs beside it, to what a report is made from.

A run on a named data set and one on a user's own sites leave the same folders; what differs is what their config.toml
says, and where their data are: named ones are loaded again, a user's own are only with whoever called `federate`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from fedfomo.algorithms import make_algorithm
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.errors import InputError, listed, require
from fedfomo.io import read_json, read_lines
from fedfomo.privacy.config import Privacy
from fedfomo.report.data import ClientFacts, FinalResult, PrivacyFacts, ReportInput, Reproduce
from fedfomo.report.per_example import PerExampleScores, read_scores, score_examples, write_scores
from fedfomo.report.select_run import comparison_in, has_begun, parts_of
from fedfomo.runs.config import NOT_RESULT_RELEVANT, CompareConfig, ExperimentConfig, RunConfig, label_of
from fedfomo.runs.config_io import named, to_cli
from fedfomo.runs.own_problem import PreparedFile, prepare_any
from fedfomo.runs.own_sites import is_of_sites, read_sites_config, way_to_resume
from fedfomo.runs.provenance import clients_of, label_counts, read_environment, same_clients
from fedfomo.runs.records import RunRecord, load_models, read_record, read_rounds
from fedfomo.runs.run import read_config
from fedfomo.simulation.problem import FederatedProblem

# What a command that reproduces a run says even where it is the default.
ALWAYS_NAMED = ("method", "methods", "seed", "seeds", "dataset", "rounds")
OF_DATA_SETS = ("scenario", "clients")  # likewise, where a named data set is spread over clients
# Settings in which runs may differ and still be compared: where and how a run is computed.
MAY_DIFFER = (*NOT_RESULT_RELEVANT, "device", "vectorise", "evaluate_every")


def prepare_run(folder: Path) -> FederatedProblem | InputError:
    """Load a run's data again, or say why they are not at hand."""
    if is_of_sites(folder):
        return InputError("they are with whoever called federate, whose result.report() shows all there is")
    config = read_config(folder)
    played_on = read_environment(folder)
    try:
        prepared = prepare_any(replace(config.setting, workers=0, device="cpu", executor="processes"), config.seed)
    except InputError as error:
        return error
    if isinstance(prepared, PreparedFile):
        begun = played_on.get("file", {}).get("sha256")
        changed = f"{prepared.path} has changed since the run was begun"
        return prepared.problem if begun == prepared.environment["file"]["sha256"] else InputError(changed)
    name = prepared.data.name
    if prepared.data.fingerprint != played_on["data"]["sha256"]:
        return InputError(f"'{name}' has changed since: its hash is {prepared.data.fingerprint}")
    if not same_clients(played_on, clients_of(prepared)):
        cause = "its latent groups were built again, or this version deals them out otherwise"
        return InputError(f"the examples of '{name}' would go to other clients than the run's now: {cause}")
    return prepared.problem


@dataclass(frozen=True)
class _Asked:
    """What a run was asked for, whether on a named data set or on own sites."""

    method: str
    source: str  # the method as it can be made again: its name, or its file and class
    in_full: str  # with its options, as far as they are known not to be the default
    options: Mapping[str, Any]
    seed: int
    rounds: int
    participation: float
    dropout: float
    privacy: Privacy
    title: str
    data: str  # whose they are
    metric: str
    names: list[str]
    commands: list[str]  # that do the same again
    config: RunConfig | None  # None: of own sites


def load(
    folder: Path,
    beside: Sequence[Path] = (),
    data: FederatedProblem | InputError | None = None,
    algorithms: Mapping[Path, AnyAlgorithm] | None = None,
    crosses: bool = True,
) -> ReportInput:
    """Collect everything about one run, and how the runs beside it ended.

    Args:
        folder: The run's folder.
        beside: Further runs on the same clients.
        data: The run's model and data, or why they are not at hand.
        algorithms: By folder, those that no name or option describes.
        crosses: Whether every model is tried on every client's test examples, unless that takes long.
    """
    asked, environment = _asked(folder), read_environment(folder)
    problem = data if isinstance(data, FederatedProblem) else None
    _check_beside(folder, beside)
    siblings = _siblings(folder, asked.seed)
    alike = [other for other in siblings if _had_same_clients(folder, other)]
    ended = _ended_runs(folder, asked, [*alike, *beside])
    is_finished = (folder / "result.json").exists()
    record = read_record(folder) if is_finished else None
    known = algorithms or {}
    algorithm = known.get(folder) or _algorithm(asked.source, asked.options)
    targets: list[int] = environment["targets"]
    results = {
        method: _final_result(other, problem, known.get(other), crosses and other == folder)
        for method, other in ended.items()
    }
    # How many of which label a client holds is not for a page about a private run.
    clients = _clients(asked, environment, None if asked.privacy.is_on else problem)
    return ReportInput(
        title=asked.title,
        method=asked.method,
        algorithm=algorithm,
        seed=asked.seed,
        rounds_planned=asked.rounds,
        clients=clients,
        lines=read_rounds(folder),
        seconds={line["round"]: line for line in read_lines(folder / "seconds.jsonl")},
        ended=results,
        affinity=record.affinity if record else None,
        mixing=record.taken if record else None,
        own_targets=targets == list(range(len(targets))),
        reproduce=_reproduce(folder, asked, environment),
        metric=asked.metric,
        word="client" if asked.config else "site",
        data=asked.data,
        date=_date(folder / ("result.json" if is_finished else "rounds.jsonl")),
        notes=[
            *_unfinished(folder, is_finished),
            *_stopped(record, asked.rounds, len(read_rounds(folder))),
            *environment["warnings"],
            *([] if problem else _lost(data, results, clients)),
            *_set_apart([other for other in siblings if other not in alike]),
            *_low_bar(ended.get("local")),
        ],
        advice=_advice(asked, ended),
        privacy=_privacy(folder, asked.privacy),
    )


def _date(path: Path) -> str:
    return f"{datetime.fromtimestamp(path.stat().st_mtime).astimezone():%Y-%m-%d}" if path.exists() else ""


def _asked(folder: Path) -> _Asked:
    """Read what a run was asked for."""
    environment = read_environment(folder)
    comparison = _comparison(folder)
    if is_of_sites(folder):
        own = read_sites_config(folder)
        chosen = [f"{name}={value}" for name, value in own.options.items()]
        return _Asked(
            method=label_of(own.method),
            source=own.method,
            in_full=f"{label_of(own.method)} ({', '.join(chosen)})" if chosen else label_of(own.method),
            options=own.options,
            seed=own.seed,
            rounds=own.rounds,
            participation=own.participation,
            dropout=0.0,
            privacy=own.privacy_settings,
            title=f"{len(own.sites)} sites: {listed(own.sites)}",
            data="Each site's own.",
            metric=own.metric,
            names=own.sites,
            commands=[own.call],
            config=None,
        )
    config = read_config(folder)
    setting = config.setting
    commands = [" ".join(["fedfomo run", *_flags(config)])]
    if comparison is not None:
        commands.append(" ".join(["fedfomo compare", *_flags(comparison)]))
    names = environment.get("names") or [f"client {client}" for client in range(len(environment["examples"]))]
    split, dealt = f"{setting.scenario.scenario}, {len(names)} clients", f"{len(names)} simulated clients"
    return _Asked(
        method=label_of(config.method),
        source=config.method,
        in_full=method_in_full(config),
        options=config.options,
        seed=config.seed,
        rounds=setting.rounds,
        participation=setting.participation,
        dropout=setting.client_dropout,
        privacy=setting.privacy,
        title=f"{environment['data']['name']}, {f'{len(names)} sites' if setting.is_own else split}",
        data="Each site's own."
        if setting.is_own
        else f"The data set '{environment['data']['name']}', dealt to {dealt}.",
        metric=environment.get("metric", "accuracy"),
        names=names,
        commands=commands,
        config=config,
    )


def _flags(config: RunConfig | CompareConfig) -> list[str]:
    further = () if config.setting.is_own else OF_DATA_SETS
    return to_cli(replace(config, out=None), (*ALWAYS_NAMED, *further))


def _algorithm(method: str, options: Mapping[str, Any]) -> AnyAlgorithm | None:
    """Make a run's algorithm again; None: it was an object, or of a file, that is not to be found here."""
    try:
        return make_algorithm(method, options)
    except InputError:
        return None


def _siblings(folder: Path, seed: int) -> list[Path]:
    """Find the runs of the same comparison that started from the same seed."""
    if not _is_part(folder):
        return []
    found = sorted(folder.parent.glob(f"*-seed-{seed}"))
    return [other for other in found if other != folder and has_begun(other)]


def _had_same_clients(folder: Path, other: Path) -> bool:
    return same_clients(read_environment(folder), read_environment(other))


def _set_apart(others: Sequence[Path]) -> list[str]:
    """Say which runs of a comparison are left out since their clients were others."""
    if not others:
        return []
    names = ", ".join(other.name for other in others)
    return [f"Left out, since the data set or its latent groups changed within the comparison: {names}."]


def _is_part(folder: Path) -> bool:
    """Tell whether a run is one of several that were asked for together."""
    return (folder.parent / "config.toml").exists() and parts_of(folder.parent) is not None


def _comparison(folder: Path) -> CompareConfig | None:
    """Read the configuration of the comparison on a named data set that a run belongs to."""
    return comparison_in(folder.parent) if _is_part(folder) and not is_of_sites(folder.parent) else None


def method_in_full(config: RunConfig) -> str:
    """Name a method with its options, as far as they are not the default."""
    chosen, usual = (vars(make_algorithm(config.method, given)) for given in (config.options, None))
    options = [f"{name}={value}" for name, value in chosen.items() if value != usual[name]]
    label = label_of(config.method)
    return f"{label} ({', '.join(options)})" if options else label


def comparable(setting: ExperimentConfig) -> ExperimentConfig:
    """Return what runs that stand side by side have in common: all that decides a result."""
    usual = ExperimentConfig()
    return replace(setting, **{name: getattr(usual, name) for name in MAY_DIFFER})


def _ended_runs(folder: Path, asked: _Asked, others: Sequence[Path]) -> dict[str, Path]:
    """Name the finished runs: by their methods, and a second one of a method by its options as well."""
    ended, in_full = {asked.method: folder}, {asked.in_full: folder}
    finished = [(other, _asked(other)) for other in others if (other / "result.json").exists()]
    # Those without options first: of several, theirs is the plain name.
    for other, theirs in sorted(finished, key=lambda run: run[1].in_full != run[1].method):
        name = theirs.in_full
        require(name not in in_full, f"{other} has the method and options of {in_full.get(name)}: leave it out")
        in_full[name] = other
        names = label_of(theirs.method), name, f"{name} (default options)"
        ended[next(free for free in names if free not in ended)] = other
    return {name: run for name, run in ended.items() if (run / "result.json").exists()}


def _check_beside(folder: Path, beside: Sequence[Path]) -> None:
    own = [run for run in (folder, *beside) if beside and is_of_sites(run)]
    for run in own:
        raise InputError(f"{run} is of federate: its page has the methods of its own folder beside it, and no others")
    for other in beside:
        config = read_config(other)
        require((other / "result.json").exists(), f"{other} is not finished: go on with `fedfomo resume {other}`")
        is_same = _had_same_clients(folder, other) and config.seed == read_config(folder).seed
        require(is_same, f"{other} had other clients than {folder}: they cannot stand side by side")
        settings = [named(comparable(read_config(run).setting)) for run in (folder, other)]
        differing = [name for name, value in settings[0].items() if settings[1][name] != value]
        words = ", ".join(f"{name} ({settings[0][name]}, there {settings[1][name]})" for name in differing)
        require(not differing, f"{other} had another setting than {folder}: {words}; a gap would be of both")


def _clients(asked: _Asked, environment: Mapping[str, Any], problem: FederatedProblem | None) -> list[ClientFacts]:
    groups, targets = environment["groups"], environment["targets"]
    counts = label_counts(problem.clients) if problem else environment.get("labels")
    return [
        ClientFacts(
            name=name,
            **environment["examples"][client],
            group=groups[client] if groups else None,
            target=groups[targets[client]] if groups else None,
            train_labels=counts[0][client] if counts else None,
            target_labels=counts[1][client] if counts else None,
        )
        for client, name in enumerate(asked.names)
    ]


def _final_result(
    folder: Path, problem: FederatedProblem | None, algorithm: AnyAlgorithm | None, crosses: bool
) -> FinalResult:
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
        is_of_sets=is_of_sites(folder) and (own := read_sites_config(folder)).metric in own.metrics,
    )


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
    algorithm = algorithm or _algorithm(_asked(folder).source, record.options)
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
    if not _is_part(folder):
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
        if (local / "result.json").exists() and _had_same_clients(run, local):
            alone = read_record(local).figures()
            gaps = [value - alone[client] for client, value in record.figures().items()]
            gains[record.seed] = [gap for gap in gaps if math.isfinite(gap)]
    return gains


def _reproduce(folder: Path, asked: _Asked, environment: Mapping[str, Any]) -> Reproduce:
    hashes = environment.get("sites") or {"data": environment["data"]["sha256"]}
    files = [name for name in ("config.toml", "rounds.jsonl") if (folder / name).exists()]
    hashes = {**hashes, **{name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}}
    versions = {"python": environment["python"], **environment["versions"]}
    return Reproduce("\n".join(asked.commands), (folder / "config.toml").read_text(), hashes, versions)


def _privacy(folder: Path, privacy: Privacy) -> PrivacyFacts | None:
    """Read what every client has spent: at the end of the run, or so far."""
    if not privacy.is_on:
        return None
    spent: dict[str, dict[str, float | None]] = {}
    for line in read_lines(folder / "rounds.jsonl"):
        spent |= line["epsilon"]
    if (folder / "result.json").exists():
        spent |= read_json(folder / "result.json", "delete it and resume the run").get("spent") or {}

    def largest(records: str) -> float | None:
        values = [epsilons[records] for epsilons in spent.values()]
        return None if None in values else max((value for value in values if value is not None), default=0.0)

    return PrivacyFacts(largest("training"), largest("validation"), privacy.delta)


def _stopped(record: RunRecord | None, planned: int, completed: int) -> list[str]:
    """Say where a run ended early, and of which round its models are."""
    if record is None or (record.best_round is None and completed == planned):
        return []
    early = (
        f"Stopped after {completed} of {planned} rounds, without a gain on validation data. "
        if completed < planned
        else ""
    )
    of = f"round {record.best_round}, the best on validation data" if record.best_round else "the last update"
    return [f"{early}Models are those of {of}."]


def _unfinished(folder: Path, is_finished: bool) -> list[str]:
    """Say how to go on with a run that has not ended, in case nobody is computing it."""
    if is_finished:
        return []
    way_on = f"If it was stopped, {way_to_resume(folder)} goes on."
    return [f"This run is not finished: it is being computed, or was stopped. {way_on}"]


def _lost(
    data: FederatedProblem | InputError | None, results: Mapping[str, FinalResult], clients: Sequence[ClientFacts]
) -> list[str]:
    """Say what a report lacks without the run's data, and why they are not there."""
    missing = ["intervals are unpaired"] if any(ended.examples is None for ended in results.values()) else []
    missing += ["label mixes are missing"] if all(client.train_labels is None for client in clients) else []
    missing += ["models are not tried on each other's targets"] if not _is_crossed(results) else []
    reason = f" ({data})" if isinstance(data, InputError) else ""
    return [f"The run's data are not at hand here{reason}: {', '.join(missing)}."] if missing else []


def _is_crossed(results: Mapping[str, FinalResult]) -> bool:
    return any(ended.examples is not None and ended.examples.cross is not None for ended in results.values())


def _low_bar(local: Path | None) -> list[str]:
    """Say where Local had fewer rounds to train in than a client that is really alone."""
    asked = _asked(local) if local else None
    if asked is None or (asked.participation == 1 and asked.dropout == 0):
        return []
    return [
        f"Local trained only when a client was drawn and answered (participation {asked.participation}, chance of"
        f" dropping out {asked.dropout}); a client that is really alone trains in every round, so gains over"
        " Local are too large."
    ]


def _advice(asked: _Asked, ended: Mapping[str, Path]) -> str:
    config = asked.config
    missing = [method for method in ("local", "fedavg") if method not in ended and method != asked.method]
    if not missing:
        return ""
    if config is None:
        added = ", ".join(repr(method) for method in missing)
        return f"This run has no {' and no '.join(missing)} beside it: federate(..., baselines=[{added}]) adds them."
    comparison = CompareConfig(
        methods=tuple(dict.fromkeys(("local", "fedavg", config.method))),
        options={label_of(config.method): config.options} if config.options else {},
        seeds=(config.seed,),
        setting=config.setting,
    )
    command = " ".join(["fedfomo compare", *_flags(comparison)])
    return f"This run has no {' and no '.join(missing)} beside it. To measure it against them, run: {command}"
