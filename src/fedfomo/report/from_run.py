"""From the folder of a run, with those of the runs beside it, to what a report is made from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedfomo.algorithms import make_algorithm
from fedfomo.errors import InputError, require
from fedfomo.io import read_json, read_lines
from fedfomo.report.data import ClientFacts, PrivacyFacts, Reproduce
from fedfomo.report.inputs import FinalResult, ReportInput
from fedfomo.report.per_example import (
    PerExampleScores,
    examine,
    label_counts,
    read_examination,
    write_examination,
)
from fedfomo.report.select_run import comparison_in, has_begun
from fedfomo.runs.config import NOT_RESULT_RELEVANT, CompareConfig, ExperimentConfig, RunConfig, label_of
from fedfomo.runs.config_io import named, to_cli
from fedfomo.runs.provenance import clients_of, read_environment, same_clients
from fedfomo.runs.run import RunRecord, load_models, read_config, read_record
from fedfomo.runs.setup import Prepared, prepare

# What a command that reproduces a run says even where it is the default.
ALWAYS_NAMED = ("method", "methods", "seed", "seeds", "dataset", "scenario", "clients", "rounds")
# Settings in which runs may differ and still be compared: where and how a run is computed.
MAY_DIFFER = (*NOT_RESULT_RELEVANT, "device", "vectorise", "evaluate_every")


def prepare_run(folder: Path) -> Prepared | InputError:
    """Load a run's data again, or say why they are not at hand."""
    config = read_config(folder)
    played_on = read_environment(folder)
    try:
        prepared = prepare(replace(config.setting, workers=0, device="cpu", executor="processes"), config.seed)
    except InputError as error:
        return error
    name = prepared.data.name
    if prepared.data.fingerprint != played_on["data"]["sha256"]:
        return InputError(f"'{name}' has changed since: its hash is {prepared.data.fingerprint}")
    if not same_clients(played_on, clients_of(prepared)):
        cause = "its latent groups were built again, or this version deals them out otherwise"
        return InputError(f"the examples of '{name}' would go to other clients than the run's now: {cause}")
    return prepared


def gather(folder: Path, beside: Sequence[Path] = (), loaded: Prepared | InputError | None = None) -> ReportInput:
    """Collect everything about one run, and how the runs beside it ended."""
    prepared = loaded if isinstance(loaded, Prepared) else None
    config = read_config(folder)
    environment = read_environment(folder)
    names = [f"client {client}" for client in range(len(environment["examples"]))]
    _check_beside(folder, beside)
    siblings = _siblings(folder, config)
    alike = [other for other in siblings if _had_same_clients(folder, other)]
    ended = _ended_runs(folder, config, [*alike, *beside])
    is_finished = (folder / "result.json").exists()
    record = read_record(folder) if is_finished else None
    algorithm: Any = make_algorithm(config.method, config.options)
    targets: list[int] = environment["targets"]
    return ReportInput(
        title=f"{environment['data']['name']}, {config.setting.scenario.scenario}, {len(names)} clients",
        method=label_of(config.method),
        options=asdict(algorithm),
        judged_first=algorithm.judged_first,
        seed=config.seed,
        rounds_planned=config.setting.rounds,
        # How many of which label a client holds is not for a page about a private run.
        clients=_clients(names, environment, None if config.setting.privacy.is_on else prepared),
        lines=read_lines(folder / "rounds.jsonl"),
        seconds={line["round"]: line for line in read_lines(folder / "seconds.jsonl")},
        ended={method: _ended(other, folder, prepared) for method, other in ended.items()},
        affinity=record.affinity if record else None,
        taken=record.taken if record else None,
        own_targets=targets == list(range(len(targets))),
        reproduce=_reproduce(folder, config, environment),
        notes=[
            *environment["warnings"],
            *_lost(loaded),
            *_set_apart([other for other in siblings if other not in alike]),
            *_low_bar(ended.get("local")),
        ],
        advice=_advice(config, ended),
        privacy=_privacy(folder, config),
    )


def _siblings(folder: Path, config: RunConfig) -> list[Path]:
    """Find the runs of the same comparison that started from the same seed."""
    if _comparison(folder) is None:
        return []
    found = sorted(folder.parent.glob(f"*-seed-{config.seed}"))
    return [other for other in found if other != folder and has_begun(other)]


def _had_same_clients(folder: Path, other: Path) -> bool:
    return same_clients(read_environment(folder), read_environment(other))


def _set_apart(others: Sequence[Path]) -> list[str]:
    """Say which runs of a comparison are left out since their clients were others."""
    if not others:
        return []
    names = ", ".join(other.name for other in others)
    return [f"Left out, since the data set or its latent groups changed within the comparison: {names}."]


def _comparison(folder: Path) -> CompareConfig | None:
    """Read the configuration of the comparison that a run belongs to."""
    return comparison_in(folder.parent) if (folder.parent / "config.toml").exists() else None


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


def _ended_runs(folder: Path, config: RunConfig, others: Sequence[Path]) -> dict[str, Path]:
    """Name the finished runs: by their methods, and a second one of a method by its options as well."""
    ended, in_full = {label_of(config.method): folder}, {method_in_full(config): folder}
    finished = [(other, read_config(other)) for other in others if (other / "result.json").exists()]
    # Those without options first: of several, theirs is the plain name.
    for other, theirs in sorted(finished, key=lambda run: method_in_full(run[1]) != label_of(run[1].method)):
        name = method_in_full(theirs)
        require(name not in in_full, f"{other} has the method and options of {in_full.get(name)}: leave it out")
        in_full[name] = other
        names = label_of(theirs.method), name, f"{name} (default options)"
        ended[next(free for free in names if free not in ended)] = other
    return {name: run for name, run in ended.items() if (run / "result.json").exists()}


def _check_beside(folder: Path, beside: Sequence[Path]) -> None:
    for other in beside:
        config = read_config(other)
        require((other / "result.json").exists(), f"{other} is not finished: go on with `fedfomo resume {other}`")
        is_same = _had_same_clients(folder, other) and config.seed == read_config(folder).seed
        require(is_same, f"{other} had other clients than {folder}: they cannot stand side by side")
        settings = [named(comparable(read_config(run).setting)) for run in (folder, other)]
        differing = [name for name, value in settings[0].items() if settings[1][name] != value]
        words = ", ".join(f"{name} ({settings[0][name]}, there {settings[1][name]})" for name in differing)
        require(not differing, f"{other} had another setting than {folder}: {words}; a gap would be of both")


def _clients(names: Sequence[str], environment: Mapping[str, Any], prepared: Prepared | None) -> list[ClientFacts]:
    groups, targets = environment["groups"], environment["targets"]
    counts = label_counts(prepared.scenario.clients) if prepared else None
    return [
        ClientFacts(
            name=name,
            **environment["examples"][client],
            group=groups[client] if groups else None,
            target=groups[targets[client]] if groups else None,
            train_labels=counts[0][client] if counts else None,
            target_labels=counts[1][client] if counts else None,
        )
        for client, name in enumerate(names)
    ]


def _ended(folder: Path, about: Path, prepared: Prepared | None) -> FinalResult:
    record = read_record(folder)
    traffic = record.traffic
    of_seeds = {run: read_record(run) for run in _runs_of_seeds(folder, record.method)}
    return FinalResult(
        scores=record.after_update,
        bytes_moved=traffic.bytes_down + traffic.bytes_up,
        gradients=record.gradients,
        examined=_examined(folder, record, prepared, crosses=folder == about),
        seed_means=[other.summary().mean for other in of_seeds.values()],
        gains_by_seed=_gains(of_seeds),
    )


def _examined(folder: Path, record: RunRecord, prepared: Prepared | None, crosses: bool) -> PerExampleScores | None:
    kept = folder / "examination.json"
    if kept.exists():
        found = read_examination(kept)
        is_enough = found.cross is not None or bool(found.why_not_crossed) or not crosses
        if is_enough and _is_of_run(found, record):
            return found
    if prepared is None:
        return None
    model = prepared.problem.model_of(make_algorithm(read_config(folder).method, record.options))
    thetas = load_models(folder, model, record)
    if thetas is None:
        return None
    found = examine(model, thetas, prepared.scenario.clients, crosses)
    if not _is_of_run(found, record):
        return None
    write_examination(kept, found)
    return found


def _is_of_run(found: PerExampleScores, record: RunRecord) -> bool:
    """Tell whether models were tried on as many test examples as the run itself tried them on."""
    tried = [record.after_update[client].num_examples for client in sorted(record.after_update)]
    return [len(figures) for figures in found.figures] == tried


def _runs_of_seeds(folder: Path, method: str) -> list[Path]:
    """Find the finished runs of the same method with every seed of a comparison."""
    if _comparison(folder) is None:
        return [folder]
    return [other for other in sorted(folder.parent.glob(f"{method}-seed-*")) if (other / "result.json").exists()]


def _gains(runs: Mapping[Path, RunRecord]) -> list[list[float]]:
    """Return for every seed what its clients gained over training alone, as far as that was run with the same ones."""
    gains: list[list[float]] = []
    for run, record in runs.items():
        local = run.parent / f"local-seed-{record.seed}"
        if (local / "result.json").exists() and _had_same_clients(run, local):
            alone = read_record(local).accuracies()
            gaps = (value - alone[client] for client, value in record.accuracies().items())
            gains.append([gap for gap in gaps if math.isfinite(gap)])
    return [of_seed for of_seed in gains if of_seed]


def _reproduce(folder: Path, config: RunConfig, environment: Mapping[str, Any]) -> Reproduce:
    hashes = {"data": environment["data"]["sha256"]}
    for name in ("config.toml", "rounds.jsonl"):
        if (folder / name).exists():
            hashes[name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    command = " ".join(["fedfomo run", *to_cli(replace(config, out=None), ALWAYS_NAMED)])
    comparison = _comparison(folder)
    if comparison:
        command += "\n" + " ".join(["fedfomo compare", *to_cli(replace(comparison, out=None), ALWAYS_NAMED)])
    versions = {"python": environment["python"], **environment["versions"]}
    return Reproduce(command, (folder / "config.toml").read_text(), hashes, versions)


def _privacy(folder: Path, config: RunConfig) -> PrivacyFacts | None:
    """Read what every client has spent: at the end of the run, or so far."""
    privacy = config.setting.privacy
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


def _lost(loaded: Prepared | InputError | None) -> list[str]:
    """Say what a report lacks without the run's data, and why they are not there."""
    if isinstance(loaded, Prepared):
        return []
    reason = f" ({loaded})" if loaded else ""
    return [f"The run's data are not at hand here{reason}: intervals are unpaired, and label mixes are missing."]


def _low_bar(local: Path | None) -> list[str]:
    """Say where Local had fewer rounds to train in than a client that is really alone."""
    setting = read_config(local).setting if local else None
    if setting is None or (setting.participation == 1 and setting.client_dropout == 0):
        return []
    return [
        f"Local trained only when a client was drawn and answered (participation {setting.participation}, chance of"
        f" dropping out {setting.client_dropout}); a client that is really alone trains in every round, so gains over"
        " Local are too large."
    ]


def _advice(config: RunConfig, ended: Mapping[str, Path]) -> str:
    missing = [method for method in ("local", "fedavg") if method not in ended and method != config.method]
    if not missing:
        return ""
    comparison = CompareConfig(
        methods=tuple(dict.fromkeys(("local", "fedavg", config.method))),
        options={label_of(config.method): config.options} if config.options else {},
        seeds=(config.seed,),
        setting=config.setting,
    )
    command = " ".join(["fedfomo compare", *to_cli(comparison, ALWAYS_NAMED)])
    return f"This run has no {' and no '.join(missing)} beside it. To measure it against them, run: {command}"
