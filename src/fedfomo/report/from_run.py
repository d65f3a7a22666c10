"""From the folder of a run, with those of the runs beside it, to what a report is made from.

A run on a named data set and one on a user's own sites leave the same folders; what differs is what their config.toml
says, and where their data are: named ones are loaded again, a user's own are only with whoever called `federate`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fedfomo.algorithms import make_algorithm
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.errors import InputError, listed, require
from fedfomo.io import read_json, read_lines
from fedfomo.privacy.config import Privacy
from fedfomo.report.data import ClientFacts, PrivacyFacts, ReportInput, Reproduce
from fedfomo.report.final_results import algorithm_of, final_result
from fedfomo.report.notes import left_out, low_bar, missing_data, stopped_early, unfinished
from fedfomo.report.select_run import comparison_in, has_begun, is_part
from fedfomo.runs.config import NOT_RESULT_RELEVANT, CompareConfig, ExperimentConfig, RunConfig, label_of
from fedfomo.runs.config_io import named, to_cli
from fedfomo.runs.description import RunDescription, describe_run
from fedfomo.runs.own_problem import PreparedFile, prepare_any
from fedfomo.runs.own_sites import SitesConfig, is_of_sites
from fedfomo.runs.provenance import clients_of, label_counts, read_environment, same_clients
from fedfomo.runs.records import read_record, read_rounds
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
    begun_on = read_environment(folder)
    try:
        setting = replace(config.setting, workers=0, device="cpu", executor="processes")
        prepared = prepare_any(setting, config.seed, [folder])
    except InputError as error:
        return error
    if isinstance(prepared, PreparedFile):
        begun = begun_on.get("file", {}).get("sha256")
        changed = f"{prepared.path} has changed since the run was begun"
        return prepared.problem if begun == prepared.environment["file"]["sha256"] else InputError(changed)
    name = prepared.data.name
    if prepared.data.fingerprint != begun_on["data"]["sha256"]:
        return InputError(f"'{name}' has changed since: its hash is {prepared.data.fingerprint}")
    if not same_clients(begun_on, clients_of(prepared)):
        cause = "its latent groups were built again, or this version deals them out otherwise"
        return InputError(f"the examples of '{name}' would go to other clients than the run's now: {cause}")
    return prepared.problem


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
    asked, environment = describe_run(folder), read_environment(folder)
    problem = data if isinstance(data, FederatedProblem) else None
    _check_beside(folder, beside)
    siblings = _siblings(folder, asked.seed)
    alike = [other for other in siblings if _had_same_clients(folder, other)]
    ended = _ended_runs(folder, asked, [*alike, *beside])
    is_finished = (folder / "result.json").exists()
    record = read_record(folder) if is_finished else None
    known = algorithms or {}
    algorithm = known.get(folder) or algorithm_of(folder)
    targets: list[int] = environment["targets"]
    results = {
        method: final_result(other, problem, known.get(other), crosses and other == folder)
        for method, other in ended.items()
    }
    # How many of which label a client holds is not for a page about a private run.
    clients = _clients(asked, environment, None if asked.privacy.is_on else problem)
    return ReportInput(
        title=_title(asked, environment),
        method=asked.label,
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
        word="client" if isinstance(asked.config, RunConfig) else "site",
        data=_whose_data(asked, environment),
        date=_date(folder / ("result.json" if is_finished else "rounds.jsonl")),
        notes=[
            *unfinished(folder, is_finished),
            *stopped_early(record, asked.rounds, len(read_rounds(folder))),
            *environment["warnings"],
            *([] if problem else missing_data(data, results, clients)),
            *left_out([other for other in siblings if other not in alike]),
            *low_bar(ended.get("local")),
        ],
        advice=_advice(asked, ended),
        privacy=_privacy(folder, asked.privacy),
    )


def _date(path: Path) -> str:
    return f"{datetime.fromtimestamp(path.stat().st_mtime).astimezone():%Y-%m-%d}" if path.exists() else ""


def _title(asked: RunDescription, environment: Mapping[str, Any]) -> str:
    if isinstance(asked.config, SitesConfig):
        return f"{len(asked.names)} sites: {listed(asked.names)}"
    setting = asked.config.setting
    split = f"{setting.scenario.scenario}, {len(asked.names)} clients"
    return f"{environment['data']['name']}, {f'{len(asked.names)} sites' if setting.is_own else split}"


def _whose_data(asked: RunDescription, environment: Mapping[str, Any]) -> str:
    if isinstance(asked.config, SitesConfig) or asked.config.setting.is_own:
        return "Each site's own."
    return f"The data set '{environment['data']['name']}', dealt to {len(asked.names)} simulated clients."


def _commands(folder: Path, asked: RunDescription) -> list[str]:
    """Return the commands that do the same again."""
    if isinstance(asked.config, SitesConfig):
        return [asked.config.call]
    comparison = comparison_in(folder.parent) if is_part(folder) else None
    commands = [" ".join(["fedfomo run", *_flags(asked.config)])]
    return commands if comparison is None else [*commands, " ".join(["fedfomo compare", *_flags(comparison)])]


def _in_full(asked: RunDescription) -> str:
    """Name a method with its options: with those that are not the default, as far as that is known."""
    if not isinstance(asked.config, SitesConfig):
        return method_in_full(asked.config)
    chosen = [f"{name}={value}" for name, value in asked.options.items()]
    return f"{asked.label} ({', '.join(chosen)})" if chosen else asked.label


def _flags(config: RunConfig | CompareConfig) -> list[str]:
    further = () if config.setting.is_own else OF_DATA_SETS
    return to_cli(replace(config, out=None), (*ALWAYS_NAMED, *further))


def _siblings(folder: Path, seed: int) -> list[Path]:
    """Find the runs of the same comparison that started from the same seed."""
    if not is_part(folder):
        return []
    found = sorted(folder.parent.glob(f"*-seed-{seed}"))
    return [other for other in found if other != folder and has_begun(other)]


def _had_same_clients(folder: Path, other: Path) -> bool:
    return same_clients(read_environment(folder), read_environment(other))


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


def _ended_runs(folder: Path, asked: RunDescription, others: Sequence[Path]) -> dict[str, Path]:
    """Name the finished runs: by their methods, and a second one of a method by its options as well."""
    ended, in_full = {asked.label: folder}, {_in_full(asked): folder}
    finished = [(other, describe_run(other)) for other in others if (other / "result.json").exists()]
    # Those without options first: of several, theirs is the plain name.
    for other, theirs in sorted(finished, key=lambda run: _in_full(run[1]) != run[1].label):
        name = _in_full(theirs)
        require(name not in in_full, f"{other} has the method and options of {in_full.get(name)}: leave it out")
        in_full[name] = other
        names = theirs.label, name, f"{name} (default options)"
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


def _clients(
    asked: RunDescription, environment: Mapping[str, Any], problem: FederatedProblem | None
) -> list[ClientFacts]:
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


def _reproduce(folder: Path, asked: RunDescription, environment: Mapping[str, Any]) -> Reproduce:
    hashes = environment.get("sites") or {"data": environment["data"]["sha256"]}
    files = [name for name in ("config.toml", "rounds.jsonl") if (folder / name).exists()]
    hashes = {**hashes, **{name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files}}
    versions = {"python": environment["python"], **environment["versions"]}
    return Reproduce("\n".join(_commands(folder, asked)), (folder / "config.toml").read_text(), hashes, versions)


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


def _advice(asked: RunDescription, ended: Mapping[str, Path]) -> str:
    config = asked.config
    missing = [method for method in ("local", "fedavg") if method not in ended and method != asked.label]
    if not missing:
        return ""
    if isinstance(config, SitesConfig):
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
