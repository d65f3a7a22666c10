"""HypCluster (Mansour, Mohri, Ro, Suresh; 2020): q hypotheses, and FedAvg among the clients that prefer the same one.

Found at the same time as IFCA and nearly the same; here hypotheses are averaged by numbers of examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedfomo.algorithms.clustering import average_by_cluster, farthest_models, init_cluster_models
from fedfomo.algorithms.ifca import Choice, Download, SelectsCluster, unknown_cluster
from fedfomo.core.client import ClientId, FederationInfo
from fedfomo.core.messages import Parameters
from fedfomo.errors import require


@dataclass(frozen=True)
class State:
    """The hypotheses."""

    models: tuple[Parameters, ...]
    is_seeded: bool  # False: there is only the initial model, until clients have trained it
    num_trainable: int


@dataclass(frozen=True)
class HypCluster(SelectsCluster):
    """A given number of hypotheses; FedAvg among the clients that prefer the same one."""

    sends: ClassVar[str] = "num_hypotheses models down, 1 up with its number of examples and which of those was chosen"
    compute: ClassVar[str] = "as FedAvg, and num_hypotheses passes over training and validation data"

    num_hypotheses: int = 5  # q
    """Number of models."""
    seeding: Literal["clients", "random"] = "clients"
    """First models: those of clients that lie far apart after the first round, or initial ones as in the paper."""

    def __post_init__(self) -> None:
        require(self.num_hypotheses >= 1, f"num_hypotheses must be at least 1, not {self.num_hypotheses}")

    def start_server(self, start: FederationInfo) -> State:
        """Start with initial models."""
        return State(*init_cluster_models(start, self.num_hypotheses, self.seeding), start.layout.num_trainable)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send all hypotheses."""
        return Download(state.models)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Choice]) -> State:
        """Average each hypothesis, by numbers of examples, over the clients that chose it."""
        if not uploads:
            return state
        trained = {n: uploads[n].trained for n in sorted(uploads)}
        if state.is_seeded:
            cluster_of = {n: choice.cluster for n, choice in uploads.items()}
            models = average_by_cluster(state.models, trained, cluster_of)
        else:
            models = farthest_models([t.model for t in trained.values()], self.num_hypotheses, state.num_trainable)
        return State(models, True, state.num_trainable)

    def validate(self, state: State, upload: Choice) -> str | None:
        """Refuse models of hypotheses that do not exist."""
        return unknown_cluster(state.models, upload)
