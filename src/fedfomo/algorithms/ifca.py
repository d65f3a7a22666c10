"""IFCA, the iterative federated clustering algorithm (Ghosh, Chung, Yin, Ramchandran; 2020), and HypCluster.

The server keeps k models and sends all of them. A client trains the one that fits its data best, and the server
averages each model over the clients that chose it: k-means, with losses for distances and models for centres.
HypCluster (Mansour, Mohri, Ro, Suresh; 2020), found at the same time, averages by numbers of examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfomo.algorithms.clustering import average_by_cluster, farthest_models, init_cluster_models
from fedfomo.algorithms.fedavg import Upload, average_uploads
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Records, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Parameters
from fedfomo.core.options import Count


def best_model(losses: Tensor, rng: torch.Generator) -> int:
    """Return j = argmin_j F_i(θ_j), at random among equals; what is not a number is worst."""
    known = losses.nan_to_num(nan=math.inf)
    best = torch.nonzero(known == known.min()).flatten()
    return int(best[torch.randint(len(best), (), generator=rng)])


@dataclass(frozen=True)
class State:
    """The clusters' models."""

    models: tuple[Parameters, ...]
    is_seeded: bool  # False: there is only the initial model, until clients have trained it
    num_trainable: int
    head: Parameters | None  # 1 where coordinates differ between clusters, 0 where all share them; None: all differ


@dataclass(frozen=True)
class Download:
    """The clusters' models."""

    models: tuple[Parameters, ...]


@dataclass(frozen=True)
class Choice:
    """A trained model, and the cluster whose model it was trained from."""

    cluster: int
    trained: Upload


def best_on_validation(client: Client, models: Sequence[Tensor]) -> Tensor:
    """Return the model that is best on the client's validation data, or on its training data if it has no others."""
    has_validation = len(client.data.validation) > 0
    losses = client.validation_losses(models) if has_validation else client.training_losses(models)
    return models[best_model(losses, client.random("favourite"))]


def train_best(client: Client, models: Sequence[Tensor]) -> Choice:
    """Train the model that fits the client's training data best."""
    cluster = best_model(client.training_losses(models), client.random("cluster"))
    return Choice(cluster, Upload(client.train(models[cluster]), len(client.data.train)))


def next_models(
    state: State, uploads: Mapping[ClientId, Choice], trained: Mapping[ClientId, Upload], num: int
) -> tuple[Tensor, ...]:
    """Average each model over the clients that chose it; before there are all, choose those that lie far apart."""
    if state.is_seeded:
        return average_by_cluster(state.models, trained, {n: choice.cluster for n, choice in uploads.items()})
    return farthest_models([trained[n].model for n in sorted(trained)], num, state.num_trainable)


class SelectsCluster(Algorithm[State, Download, Choice, None]):
    """A server that sends all models, and a client that trains one of them and says which."""

    evaluates_on: ClassVar[Records] = "training"

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send all models."""
        return Download(state.models)

    def validate(self, state: State, upload: Choice) -> str | None:
        """Refuse models of clusters that do not exist."""
        return None if upload.cluster < len(state.models) else f"there is no cluster {upload.cluster}"

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Use the model that is best on validation."""
        return Personalised(best_on_validation(client, download.models), None)

    def train(self, client: Client, download: Download, memory: None) -> Trained[Choice, None]:
        """Train the model that fits the training data best."""
        choice = train_best(client, download.models)
        return Trained(choice, None, choice.trained.model)


@register("ifca", paper="Ghosh et al., 2020")
@dataclass(frozen=True)
class Ifca(SelectsCluster):
    """A given number of clusters; every client trains the model that fits its data best."""

    sends: ClassVar[str] = "num_clusters models down, 1 up with its number of examples and which of those was chosen"
    compute: ClassVar[str] = "as FedAvg, and num_clusters passes over training and validation data"

    num_clusters: Count = 5  # k
    """Number of models."""
    seeding: Literal["clients", "random"] = "clients"
    """First models: those of clients that lie far apart after the first round, or initial ones as in the paper."""
    share_body: bool = False
    """Let clusters differ in the network's last layer only; all else is averaged over all clients."""

    def start_server(self, start: FederationInfo) -> State:
        """Start with initial models."""
        models, is_seeded = init_cluster_models(start, self.num_clusters, self.seeding)
        head = start.layout.mask(start.layout.layers()[-1:]).float() if self.share_body else None
        return State(models, is_seeded, start.layout.num_trainable, head)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Choice]) -> State:
        """Average each model over the clients that chose it: θ_j ← mean{θ_i : j_i = j}."""
        if not uploads:
            return state
        # Every client counts alike, however many examples it has.
        alike = {n: Upload(choice.trained.model, 1) for n, choice in uploads.items()}
        models = next_models(state, uploads, alike, self.num_clusters)
        if state.head is not None:
            body = average_uploads(alike, otherwise=state.models[0])
            models = tuple(torch.where(state.head > 0, model, body) for model in models)
        return replace(state, models=models, is_seeded=True)


@register("hypcluster", paper="Mansour et al., 2020")
@dataclass(frozen=True)
class HypCluster(SelectsCluster):
    """A given number of hypotheses; FedAvg among the clients that prefer the same one."""

    sends: ClassVar[str] = "num_hypotheses models down, 1 up with its number of examples and which of those was chosen"
    compute: ClassVar[str] = "as FedAvg, and num_hypotheses passes over training and validation data"

    num_hypotheses: Count = 5  # q
    """Number of models."""
    seeding: Literal["clients", "random"] = "clients"
    """First models: those of clients that lie far apart after the first round, or initial ones as in the paper."""

    def start_server(self, start: FederationInfo) -> State:
        """Start with initial models."""
        return State(*init_cluster_models(start, self.num_hypotheses, self.seeding), start.layout.num_trainable, None)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Choice]) -> State:
        """Average each hypothesis, by numbers of examples, over the clients that chose it."""
        if not uploads:
            return state
        trained = {n: uploads[n].trained for n in sorted(uploads)}
        return replace(state, models=next_models(state, uploads, trained, self.num_hypotheses), is_seeded=True)
