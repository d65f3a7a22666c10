"""What a run was asked for, read from its folder, whether it is on a named data set, a user's file, or own sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedfomo.algorithms import make_algorithm
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config import RunConfig, label_of
from fedfomo.runs.own_sites import SitesConfig, is_of_sites, read_sites_config
from fedfomo.runs.provenance import read_environment
from fedfomo.runs.run import read_config


@dataclass(frozen=True)
class RunDescription:
    """What a run was asked for."""

    method: str  # as it can be made again: its name, or its file and class
    options: Mapping[str, Any]
    seed: int
    rounds: int
    participation: float
    dropout: float
    privacy: Privacy
    metric: str
    names: list[str]  # of the clients
    config: RunConfig | SitesConfig  # all that was asked for; of own sites, a SitesConfig

    @property
    def label(self) -> str:
        """The method as it is shown."""
        return label_of(self.method)

    def make_algorithm(self) -> AnyAlgorithm:
        """Make the method again."""
        return make_algorithm(self.method, self.options)


def describe_run(folder: Path) -> RunDescription:
    """Read what a run was asked for."""
    if is_of_sites(folder):
        own = read_sites_config(folder)
        return RunDescription(
            method=own.method,
            options=own.options,
            seed=own.seed,
            rounds=own.rounds,
            participation=own.participation,
            dropout=0.0,
            privacy=own.privacy_settings,
            metric=own.metric,
            names=own.sites,
            config=own,
        )
    config, environment = read_config(folder), read_environment(folder)
    setting = config.setting
    return RunDescription(
        method=config.method,
        options=config.options,
        seed=config.seed,
        rounds=setting.rounds,
        participation=setting.participation,
        dropout=setting.client_dropout,
        privacy=setting.privacy,
        metric=environment.get("metric", "accuracy"),
        names=environment.get("names") or [f"client {client}" for client in range(len(environment["examples"]))],
        config=config,
    )
