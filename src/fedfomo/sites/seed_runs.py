"""The runs of one seed of a federation: refused or ready before anything is computed, and kept in a folder."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.local_training import LocalTrainer
from fedfomo.core.losses import Objective
from fedfomo.errors import require
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config import label_of
from fedfomo.runs.federated_statistics import Scaling
from fedfomo.runs.own_sites import (
    SitesConfig,
    check_same_call,
    digest_of,
    problem_of_sites,
    require_folder_of_sites,
    sites_environment,
    spell,
)
from fedfomo.runs.provenance import method_file
from fedfomo.runs.run import PreparedRun
from fedfomo.runs.site_data import (
    Site,
)
from fedfomo.simulation.callbacks import Callback
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.sites.arguments import (
    PlannedMethod,
)


class RunKeeper:
    """Where runs are kept, and how their progress is shown; a temporary folder is deleted with this object."""

    def __init__(
        self, out: str | Path | None, track: tuple[str, ...], progress: bool | None, callback: Callback | None
    ) -> None:
        self.track = track
        self.callback = callback
        self.is_kept = out is not None
        self.console = Console(stderr=True, highlight=False)
        self.shows_progress = sys.stderr.isatty() if progress is None else progress
        if out is None:
            require(not track, "trackers keep what a run tells: give a folder in out= as well")
            self.folder = Path(tempfile.mkdtemp(prefix="fedfomo-"))
            weakref.finalize(self, _remove, self.folder, os.getpid())
        else:
            self.folder = Path(out)
            require_folder_of_sites(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class SeedRuns:
    """The runs of one seed: what a report of them needs that is not in their folders."""

    names: tuple[str, ...]
    problem: FederatedProblem
    prepared: Mapping[Path, PreparedRun]
    notes: tuple[str, ...]
    scaling: Scaling | None = None
    keeper: RunKeeper | None = None  # kept as long as the result is, for the sake of its folder

    @property
    def algorithms(self) -> dict[Path, AnyAlgorithm]:
        """The methods, by the folders of their runs."""
        return {folder: run.algorithm for folder, run in self.prepared.items()}


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a worker process
        shutil.rmtree(folder, ignore_errors=True)


def prepare_seed(
    make_model: Callable[[], nn.Module],
    sites: Mapping[str, Site],
    objective: Objective,
    trainer: LocalTrainer | None,
    privacy: Privacy,
    seed: int,
    call: Mapping[str, Any],
    methods: Sequence[PlannedMethod],
    simulation: SimulationConfig,
    out: Path,
    device: torch.device,
) -> SeedRuns:
    """Read the data, build the model, and refuse whatever would fail or was begun otherwise, before anything is run."""
    names = tuple(sites)
    problem, scaling = problem_of_sites(
        make_model,
        sites,
        objective,
        trainer,
        seed=seed,
        device=device,
        privacy=privacy,
        validation_fraction=call["validation_fraction"],
        standardise=call.get("standardise"),
        begun=[out / f"{each.label}-seed-{seed}" for each in methods],
    )
    problem = replace(problem, share=call.get("share", ()), keep=call.get("keep", ()))
    environment = sites_environment(names, problem, scaling)
    for each in methods:
        problem.check(each.algorithm)
    prepared: dict[Path, PreparedRun] = {}
    for each in methods:
        # Alone, everybody trains in every round: with part of the rounds missing, the bar would be too low.
        share = 1.0 if each.name == "local" else simulation.participation
        is_main = each is methods[0]
        config = SitesConfig(
            call=_spelled_call({**call, "method": each.name, "options": each.options, "seed": seed}),
            method=each.name,
            options={name: _plain(value) for name, value in each.options.items()},
            seed=seed,
            rounds=simulation.rounds,
            participation=share,
            validation_fraction=call["validation_fraction"],
            trainer=spell(problem.trainer),
            loss=_plain(call["loss"]),
            metric=objective.name,
            privacy={name: value for name, value in vars(privacy).items() if value is not None},
            sites=list(names),
            metrics=list(objective.metrics.of_sets),
            share=list(problem.share),
            keep=list(problem.keep),
            stop_after=simulation.stop_after or 0,
        )
        folder = out / f"{each.label}-seed-{seed}"
        check_same_call(folder, config, environment)
        prepared[folder] = PreparedRun(
            method=label_of(each.name),
            options=config.options,
            seed=seed,
            algorithm=each.algorithm,
            problem=problem,
            simulation=replace(simulation, participation=share, evaluate_every=1 if is_main else simulation.rounds),
            config=config.as_toml(),
            environment={**environment, **method_file(each.name)},
            digest=digest_of(config, environment),
        )
    return SeedRuns(names, problem, prepared, tuple(environment["warnings"]), scaling)


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else spell(value)


def _spelled_call(arguments: Mapping[str, Any]) -> str:
    return (
        f"fedfomo.federate(make_model, sites, {', '.join(f'{key}={spell(value)}' for key, value in arguments.items())})"
    )
