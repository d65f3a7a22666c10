"""A problem in a user's own Python file, prepared as a named data set is: every command that runs methods takes it.

The file defines `make_model` and `sites`, or `problem`. `sites` is what `federate` takes, or a function that returns
it; a function may take the seed. Optional are `loss`, `metric`, `metrics`, `primary`, `trainer`, `share`, `keep`,
`validation_fraction`, `standardise` and `groups` (the true group of every site, in order). `problem` is a
`FederatedProblem`, or a function of the seed.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from fedfomo.core.device import available_cores, resolve_device, workers_on
from fedfomo.core.local_training import LocalTrainer, Sgd
from fedfomo.core.losses import objective_of
from fedfomo.core.own_loop import as_trainer
from fedfomo.core.user_code import load_user_module
from fedfomo.errors import InputError, require
from fedfomo.runs.config import VALIDATION_FRACTION, ExperimentConfig
from fedfomo.runs.federated_statistics import Scaling, as_standardise
from fedfomo.runs.own_sites import problem_of_sites, sites_environment
from fedfomo.runs.provenance import read_environment
from fedfomo.runs.setup import Prepared, prepare
from fedfomo.runs.site_data import (
    name_faults,
    require_sites,
)
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem

# Settings that a file decides by itself.
DECIDED = ("network", "scenario", "standardise", "data")


@dataclass(frozen=True)
class PreparedFile:
    """A user's own problem with one seed, ready for every method of a comparison."""

    path: Path
    problem: FederatedProblem
    simulation: SimulationConfig
    environment: Mapping[str, Any]  # what environment.json says


AnyPrepared = Prepared | PreparedFile


def prepare_any(setting: ExperimentConfig, seed: int, begun: Sequence[Path] = ()) -> AnyPrepared:
    """Prepare a named data set, or what a Python file defines, for new runs or for those in the folders `begun`."""
    return prepare_file(setting, seed, begun) if setting.is_own else prepare(setting, seed)


def prepare_file(setting: ExperimentConfig, seed: int, begun: Sequence[Path] = ()) -> PreparedFile:
    """Run a user's file, read its sites, and refuse what would fail or is decided elsewhere."""
    path = Path(setting.dataset)
    usual = ExperimentConfig(dataset=setting.dataset)
    for name in DECIDED:
        is_left = getattr(setting, name) == getattr(usual, name)
        require(is_left, f"{path.name} decides its sites and its model by itself: leave out {_named(name, setting)}")
    module = load_user_module(path)
    trainer: Any = getattr(module, "trainer", None)
    has_problem = hasattr(module, "problem")
    if trainer is not None or has_problem:
        whose = "a trainer" if trainer is not None else "a problem"
        is_left = setting.training == Sgd()
        require(is_left, f"{path.name} has {whose} of its own: leave out flags such as --learning-rate and --epochs")
    scaling: Scaling | None = None
    if has_problem:
        problem, names = _given_problem(module, setting, seed)
    else:
        sites = read_sites(module, path, seed)
        trainer = None if trainer is None else as_trainer(trainer)
        problem, scaling = _problem_of_sites(module, sites, setting, seed, trainer, begun)
        names = tuple(sites)
    # What travels, and what clients keep: of the command line, or else of the file.
    share, keep = (getattr(setting, name) or getattr(module, name, ()) for name in ("share", "keep"))
    problem = replace(problem, share=_patterns(share) or problem.share, keep=_patterns(keep) or problem.keep)
    simulation = setting.simulation(default_workers=available_cores())
    simulation = replace(simulation, workers=workers_on(problem.model.device, setting.workers, simulation.workers))
    environment: dict[str, Any] = {
        **sites_environment(names, problem, scaling),
        "names": list(names),
        "metric": problem.model.metrics.leading,
        "file": {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()},
    }
    environment["data"] = {"name": path.name, "sha256": environment["data"]["sha256"]}
    if problem.groups is not None:
        environment["groups"] = list(problem.groups)
    return PreparedFile(path, problem, simulation, environment)


def check_file(folder: Path, prepared: PreparedFile) -> None:
    """Refuse to go on with a run whose file has changed since."""
    begun = read_environment(folder).get("file", {}).get("sha256")
    is_same = begun in (None, prepared.environment["file"]["sha256"])
    require(is_same, f"{prepared.path} has changed since {folder} was begun: undo the change, or start a new run")


def digest_of_file(prepared: PreparedFile) -> str:
    """Hash what a file decides of a run's result: data, model, loss, metrics, and the code itself."""
    found = prepared.environment
    decisive = (found["sites"], found["model"], found["file"]["sha256"], prepared.problem.groups)
    return hashlib.sha256(repr(decisive).encode()).hexdigest()


def read_sites(module: ModuleType, path: Path, seed: int) -> Mapping[str, Any]:
    """Return the sites that a file defines, whether as a mapping or as a function."""
    require(hasattr(module, "sites"), f"{path} has neither sites nor problem: define one of them beside make_model")
    sites: Any = call_with_seed(module.sites, seed)
    fraction = getattr(module, "validation_fraction", VALIDATION_FRACTION)
    require_sites(sites, fraction)
    for fault in name_faults(sites):
        raise InputError(f"{path}: {fault}")
    return sites


def _problem_of_sites(
    module: ModuleType,
    sites: Mapping[str, Any],
    setting: ExperimentConfig,
    seed: int,
    trainer: LocalTrainer | None,
    begun: Sequence[Path],
) -> tuple[FederatedProblem, Scaling | None]:
    path = Path(setting.dataset)
    require(hasattr(module, "make_model"), f"{path} has no function make_model()")
    objective = objective_of(
        getattr(module, "loss", "classification"),
        *(getattr(module, name, None) for name in ("metric", "metrics", "primary")),
    )
    problem, scaling = problem_of_sites(
        module.make_model,
        sites,
        objective,
        trainer,
        seed=seed,
        device=resolve_device(setting.device),
        precision=setting.precision,
        privacy=setting.privacy,
        validation_fraction=getattr(module, "validation_fraction", VALIDATION_FRACTION),
        standardise=as_standardise(getattr(module, "standardise", False), setting.privacy),
        begun=begun,
    )
    groups = _groups(getattr(module, "groups", None), len(sites), path)
    return replace(problem, trainer=trainer or setting.training, groups=groups, targets=groups), scaling


def _given_problem(
    module: ModuleType, setting: ExperimentConfig, seed: int
) -> tuple[FederatedProblem, tuple[str, ...]]:
    problem = call_with_seed(module.problem, seed)
    if not isinstance(problem, FederatedProblem):
        raise InputError(f"problem in {setting.dataset} is a {type(problem).__name__}: give a FederatedProblem")
    names: Sequence[str] = getattr(module, "names", [f"client {n}" for n in range(len(problem.clients))])
    is_left = setting.precision in ("float32", problem.model.precision)
    require(
        is_left, f'the problem in {setting.dataset} has a model of its own: give Model(..., precision="bf16") there'
    )
    is_named = len(names) == len(problem.clients)
    require(is_named, f"{setting.dataset} has {len(names)} names for {len(problem.clients)} clients")
    return replace(problem, seed=seed, privacy=setting.privacy), tuple(names)


def call_with_seed(given: Any, seed: int) -> Any:
    """Call what is a function, with the seed if it takes one."""
    if not callable(given):
        return given
    return given(seed) if inspect.signature(given).parameters else given()


def _groups(given: Any, number: int, path: Path) -> tuple[int, ...] | None:
    if given is None:
        return None
    is_right = isinstance(given, Sequence) and len(cast(Sequence[Any], given)) == number
    require(is_right, f"groups in {path} must be one whole number for each of the {number} sites")
    return tuple(int(group) for group in given)


def _patterns(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


def _named(part: str, setting: ExperimentConfig) -> str:
    """Name the flag by which a part of a setting differs from the default."""
    if part != "scenario":
        return f"--{part}"
    usual = ExperimentConfig().scenario
    changed = [f.name for f in fields(usual) if getattr(setting.scenario, f.name) != getattr(usual, f.name)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in changed)
