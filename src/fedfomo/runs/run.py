"""From what was asked for to a finished, resumable run folder: one way for named data sets and for own sites."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import torch

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.algorithms.clustering import agreement, group_by_affinity
from fedfomo.algorithms.registry import file_of, find_algorithm
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.local_training import LocalTrainer
from fedfomo.core.method_names import method_of
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.errors import InputError, require, unknown
from fedfomo.io import make_folder, write_atomically
from fedfomo.runs.config import NOT_RESULT_RELEVANT, CompareConfig, ExperimentConfig, RunConfig, label_of
from fedfomo.runs.config_io import RENAMED, read_toml, write_toml
from fedfomo.runs.final_models import write_models
from fedfomo.runs.own_problem import AnyPrepared, PreparedFile, check_file, digest_of_file
from fedfomo.runs.provenance import (
    check_clients,
    check_machine,
    check_method_file,
    environment_of,
    method_file,
    precision_of,
    write_environment,
)
from fedfomo.runs.records import RunRecord, dense_rows, read_record, write_record
from fedfomo.simulation.callbacks import Callback
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem, kind_of, takes_trainer
from fedfomo.simulation.process_utils import rare_collections
from fedfomo.simulation.simulate import RunResult, simulate

Tell = Callable[[str], None]


def new_folder(out: Path | None, name: str) -> Path:
    """Make a new folder for a run: the one asked for, or one named after the time, numbered if there is one already."""
    if out is None:
        return _numbered_folder(Path("runs") / f"{time.strftime('%Y-%m-%d-%H%M%S')}-{name}")
    if out.exists():
        is_run = (out / "config.toml").exists()
        way_on = f"go on with `fedfomo resume {out}`, or choose" if is_run else "choose"
        raise InputError(f"{out} exists: {way_on} another with --out")
    make_folder(out, is_new=True)
    return out


def _numbered_folder(folder: Path) -> Path:
    """Make a folder of this name, or of the first number behind it that nobody else has taken."""
    for number in count(1):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        if not candidate.exists():
            try:
                make_folder(candidate, is_new=True)
            except InputError:
                if not candidate.is_dir():  # if it is one, another process was first
                    raise
            else:
                return candidate
    raise AssertionError  # numbers have no end


def absolute_paths(setting: ExperimentConfig) -> ExperimentConfig:
    """Name the folder of the data, and a file of groups, so that they are found from anywhere."""
    if setting.is_own:
        setting = replace(setting, dataset=str(Path(setting.dataset).absolute()))
    if setting.data is not None:
        setting = replace(setting, data=setting.data.absolute())
    groups = setting.scenario.groups
    if groups is not None:
        setting = replace(setting, scenario=replace(setting.scenario, groups=groups.absolute()))
    return setting


@dataclass(frozen=True)
class PreparedRun:
    """One run of one method, ready to start, whether its clients are of a named data set or a user's own sites."""

    method: str
    options: Mapping[str, Any]
    seed: int
    algorithm: AnyAlgorithm
    problem: FederatedProblem
    simulation: SimulationConfig
    config: str  # what config.toml says: what was asked for
    environment: Mapping[str, Any]  # what environment.json says: on whose data, by which code, on which machine
    digest: str  # of whatever decides the result, so that a checkpoint is never continued under other conditions


def absolute_method(method: str) -> str:
    """Name the file of a method so that it is found from anywhere."""
    file, plain = file_of(method), method_of(method)
    return method if file is None else f"{method.removesuffix(plain)}{file.absolute()}:{label_of(plain)}"


def start_run(config: RunConfig, folder: Path, prepared: AnyPrepared) -> None:
    """Write down, before anything is computed, what a run is and on what it runs."""
    write_atomically(folder / "config.toml", write_toml(config).encode())
    write_environment(folder, {**_environment(prepared, config.setting), **method_file(config.method)})


def run_or_resume(folder: Path, prepared: AnyPrepared, callback: Callback | None, tell: Tell) -> RunRecord:
    """Run what is left of a run on a named data set, from its configuration and its newest checkpoint."""
    config = read_config(folder)
    if (folder / "environment.json").exists():
        check_method_file(folder, config.method)
        if isinstance(prepared, PreparedFile):
            check_file(folder, prepared)
    run = PreparedRun(
        method=label_of(config.method),
        options=config.options,
        seed=config.seed,
        algorithm=make_algorithm(config.method, config.options),
        problem=prepared.problem,
        simulation=prepared.simulation,
        config=write_toml(config),
        environment={**_environment(prepared, config.setting), **method_file(config.method)},
        digest=_digest(config, prepared),
    )
    return finish_prepared(folder, run, callback, tell)


@rare_collections()  # until all that thousands of clients left in memory is gone
def finish_prepared(folder: Path, run: PreparedRun, callback: Callback | None, tell: Tell) -> RunRecord:
    """Finish a run from its newest checkpoint; of a finished one, read the record."""
    if (folder / "environment.json").exists():
        check_clients(folder, run.environment)
    finished = folder / "result.json"
    if finished.exists() and not RunDirectory.needs_clearing(folder):
        return read_record(folder)
    directory = RunDirectory(folder, run.digest, tell)
    started = time.monotonic()
    try:
        if finished.exists():  # whoever finished the run was killed before it had cleared up, or was here until now
            directory.remove_checkpoints()
            return read_record(folder)
        if not (folder / "config.toml").exists():
            write_atomically(folder / "config.toml", run.config.encode())
        if not (folder / "environment.json").exists():
            write_environment(folder, run.environment)
        check_machine(folder, tell)
        result = simulate(run.problem, run.algorithm, run.simulation, directory, callback)
        write_models(directory, result.models, run.problem.model_of(run.algorithm))
        record = _record(run, result, time.monotonic() - started)
        write_record(directory, record, {"affinity": result.affinity, "taken": result.taken})
        directory.remove_checkpoints()
        return record
    finally:
        directory.close()


def read_config(folder: Path) -> RunConfig:
    """Read the configuration that a run was started with."""
    require(folder.is_dir(), f"there is no run folder {folder}")
    require((folder / "config.toml").exists(), f"{folder} is not a run folder: it has no config.toml")
    return read_toml(folder / "config.toml", RunConfig)


def runs_of(config: CompareConfig) -> list[RunConfig]:
    """List the runs of a comparison; local training is always among them."""
    config, _ = with_methods_named(config)
    methods = list(dict.fromkeys(("local", *config.methods)))
    impossible = _impossible(config.setting, methods)
    for method in methods:
        require(method not in impossible, f"{method} cannot run here: {impossible.get(method)}")
    labels = list(map(label_of, methods))
    require(len(set(labels)) == len(labels), f"two methods have the same name: {', '.join(labels)}")
    for label in config.options:
        if label not in labels:
            raise unknown("method in options", label, labels)
    return [
        RunConfig(method, config.options.get(label, {}), seed, None, config.setting)
        for seed in config.seeds
        for method, label in zip(methods, labels, strict=True)
    ]


def with_methods_named(config: CompareConfig, trainer: LocalTrainer | None = None) -> tuple[CompareConfig, list[str]]:
    """Name the methods that `all` stands for, and say which are left out, and why."""
    if config.methods != ("all",):
        return config, []
    impossible = _impossible(config.setting, trainer=trainer, options=config.options)
    by_reason: dict[str, list[str]] = {}
    for method, reason in impossible.items():
        by_reason.setdefault(reason, []).append(method)
    notes = [f"{', '.join(methods)} left out of all: {reason}" for reason, methods in by_reason.items()]
    return replace(config, methods=tuple(method for method in ALGORITHMS if method not in impossible)), notes


def _impossible(
    setting: ExperimentConfig,
    further: Sequence[str] = (),
    trainer: LocalTrainer | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, str]:
    """Name the methods that cannot run in a setting, or with their options on a trainer, each with the reason."""
    privacy, found = setting.privacy, dict[str, str]()
    own = {method: find_algorithm(method) for method in further if method not in ("all", *ALGORITHMS)}
    for name, method in {**ALGORITHMS, **own}.items():
        if method.needs_groups and not setting.scenario.has_groups:
            found[name] = "it needs to know clients' true groups, and this scenario has none"
        elif privacy.is_on and method.reads_records:
            found[name] = "it reads private records itself, past the noise"
        elif privacy.is_on and method.evaluates_on == "training" and privacy.validation_noise is None:
            found[name] = "it judges models by training records, which with privacy takes --privacy.validation-noise"
        elif trainer is not None and not takes_trainer(make_algorithm(name, (options or {}).get(name, {})), trainer):
            found[name] = f"it takes steps that a {kind_of(trainer)} does not give"
    return found


def _record(run: PreparedRun, result: RunResult, seconds: float) -> RunRecord:
    groups, targets = run.environment["groups"], run.environment["targets"]
    found = None
    # With targets of others, affinity follows what a client aims at, and clients that value each other need not exist.
    own_targets = targets == list(range(len(targets)))
    affinity = dense_rows(result.affinity)
    if groups is not None and affinity is not None and own_targets:
        found = group_by_affinity(torch.tensor(affinity, dtype=torch.float64), len(set(groups)))
    return RunRecord(
        method=run.method,
        options=run.options,
        seed=run.seed,
        after_update=result.after_update,
        after_training=result.after_training,
        traffic=result.traffic,
        affinity=affinity,
        taken=dense_rows(result.taken),
        refusals=result.refusals,
        gradients=result.gradients,
        spent=result.spent,
        groups=groups,
        groups_found=found,
        group_agreement=None if groups is None or found is None else agreement(groups, found),
        seconds=seconds,
        metric=run.problem.model.metrics.leading,
        best_round=result.best_round,
    )


def _environment(prepared: AnyPrepared, setting: ExperimentConfig) -> dict[str, Any]:
    found = prepared.environment if isinstance(prepared, PreparedFile) else environment_of(prepared, setting)
    return {**found, **precision_of(prepared.problem.model)}


def _digest(config: RunConfig, prepared: AnyPrepared) -> str:
    """Hash whatever decides a run's result, so that a checkpoint is never continued under other conditions.

    What is hashed has the names and the shape of the first format of configuration files: runs begun then go on.
    """
    first_names = {new: old for old, new in RENAMED.items()}
    settings: dict[str, Any] = {**asdict(config), **method_file(config.method)}
    settings["options"] = tuple(f"{name}={_as_typed(value)}" for name, value in config.options.items())
    setting = {first_names.get(name, name): value for name, value in settings["setting"].items()}
    settings["setting"] = setting
    for name in NOT_RESULT_RELEVANT:
        del setting[name]
    del settings["out"]
    later = [(setting, name) for name in ("dropout", "lateness", "standardise", "share", "keep", "stop_after")]
    if setting["precision"] == "float32":
        del setting["precision"]
    for table, name in [*later, (setting["training"], "augment"), (setting["scenario"], "groups")]:
        if not table[name]:  # without it, a run is what it was when it did not exist
            del table[name]
    versions = [version(name) for name in ("fedfomo", "torch")]
    if isinstance(prepared, PreparedFile):
        setting["dataset"] = prepared.path.name  # wherever it lies now: its content counts
        return hashlib.sha256(repr((settings, versions, digest_of_file(prepared))).encode()).hexdigest()
    digest = hashlib.sha256(repr((settings, versions, prepared.data.fingerprint)).encode())
    for client in prepared.scenario.partition.clients:
        for indices in (client.train, client.validation, client.test):
            digest.update(repr(indices.tolist()).encode())
    return digest.hexdigest()


def _as_typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
