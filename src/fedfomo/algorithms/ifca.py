"""IFCA, the iterative federated clustering algorithm (Ghosh, Chung, Yin, Ramchandran; 2020), and HypCluster.

The server keeps k models and sends all of them. A client trains the one that fits its data best, and the server
averages each model over the clients that chose it: k-means, with losses for distances and models for centres.
HypCluster (Mansour, Mohri, Ro, Suresh; 2020), found at the same time, averages by numbers of examples.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
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
    num_members: int = 0  # clients that are there from the start
    waiting: Mapping[int, Upload] = field(default_factory=dict[int, Upload])  # until there are enough to seed by
    num_uploads: int = 0  # so far, until models are seeded


@dataclass(frozen=True)
class Download:
    """The clusters' models."""

    models: tuple[Parameters, ...]


@dataclass(frozen=True)
class Choice:
    """A trained model, and the cluster whose model it was trained from."""

    cluster: int
    trained: Upload


@dataclass(frozen=True)
class SelectsCluster(Algorithm[State, Download, Choice, None]):
    """A server that sends all models, and averages each over the clients that chose it."""

    evaluates_on: ClassVar[Records] = "training"

    seeding: Literal["clients", "random"] = field(default="clients", kw_only=True)
    """First models: those of clients that lie far apart once enough have trained, or initial ones as in the paper."""

    @property
    @abstractmethod
    def num_models(self) -> int:
        """How many models there are."""

    def counted(self, choice: Choice) -> Upload:
        """Return an upload with the number of examples by which it counts in an average."""
        return choice.trained

    def start_server(self, start: FederationInfo) -> State:
        """Start with initial models."""
        models, is_seeded = init_cluster_models(start, self.num_models, self.seeding)
        return State(models, is_seeded, start.layout.num_trainable, None, len(start.members))

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send all models."""
        return Download(state.models)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Choice]) -> State:
        """Average each model over the clients that chose it; before there are all, choose those that lie far apart."""
        if not uploads:
            return state
        trained = {n: self.counted(uploads[n]) for n in sorted(uploads)}
        if state.is_seeded:
            models = average_by_cluster(state.models, trained, {n: choice.cluster for n, choice in uploads.items()})
            return replace(state, models=self._with_shared_body(state, models, trained))
        waiting = dict(sorted({**state.waiting, **trained}.items()))
        num_uploads = state.num_uploads + len(trained)
        # Nobody new, and all known ones twice on average: if there are others, they may never answer.
        is_all = len(waiting) == len(state.waiting) and num_uploads >= 2 * len(waiting)
        if len(waiting) < min(self.num_models, state.num_members) and not is_all:
            return replace(state, waiting=waiting, num_uploads=num_uploads)
        models = farthest_models([one.model for one in waiting.values()], self.num_models, state.num_trainable)
        models = self._with_shared_body(state, models, waiting)
        return replace(state, models=models, is_seeded=True, waiting={}, num_uploads=0)

    def forget_clients(self, state: State, members: Collection[ClientId]) -> State:
        """Seed no model by what others have uploaded."""
        return replace(state, waiting={client: own for client, own in state.waiting.items() if client in members})

    def validate(self, state: State, upload: Choice) -> str | None:
        """Refuse models of clusters that do not exist."""
        return None if upload.cluster < len(state.models) else f"there is no cluster {upload.cluster}"

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Use the model that is best on the client's validation data, or on its training data if it has no others."""
        has_validation = len(client.data.validation) > 0
        losses = client.validation_losses if has_validation else client.training_losses
        best = best_model(losses(download.models), client.random("favourite"))
        return Personalised(download.models[best], None)

    def train(self, client: Client, download: Download, memory: None) -> Trained[Choice, None]:
        """Train the model that fits the training data best."""
        cluster = best_model(client.training_losses(download.models), client.random("cluster"))
        model = client.train(download.models[cluster])
        return Trained(Choice(cluster, Upload(model, len(client.data.train))), None, model)

    def _with_shared_body(
        self, state: State, models: tuple[Tensor, ...], trained: Mapping[ClientId, Upload]
    ) -> tuple[Tensor, ...]:
        """Return the models; if they are to differ in a part only, with the average of all uploads in the rest."""
        if state.head is None:
            return models
        body = average_uploads(trained, otherwise=state.models[0])
        return tuple(torch.where(state.head > 0, model, body) for model in models)


@register("ifca", paper="Ghosh et al., 2020")
@dataclass(frozen=True)
class Ifca(SelectsCluster):
    """A given number of clusters; every client trains the model that fits its data best."""

    sends: ClassVar[str] = "num_clusters models down, 1 up with its number of examples and which of those was chosen"
    compute: ClassVar[str] = "as FedAvg, and num_clusters passes over training and validation data"

    num_clusters: Count = 5  # k
    """Number of models."""
    share_body: bool = False
    """Let clusters differ in the network's last layer only; all else is averaged over all clients."""

    @property
    def num_models(self) -> int:
        """How many models there are."""
        return self.num_clusters

    def counted(self, choice: Choice) -> Upload:
        """Let every client count alike, however many examples it has: θ_j ← mean{θ_i : j_i = j}."""
        return Upload(choice.trained.model, 1)

    def start_server(self, start: FederationInfo) -> State:
        """Start with initial models, and mark the layer in which they differ if it is only one."""
        state = super().start_server(start)
        head = start.layout.mask(start.layout.layers()[-1:]).float() if self.share_body else None
        return replace(state, head=head)


@register("hypcluster", paper="Mansour et al., 2020")
@dataclass(frozen=True)
class HypCluster(SelectsCluster):
    """A given number of hypotheses; FedAvg among the clients that prefer the same one."""

    sends: ClassVar[str] = "num_hypotheses models down, 1 up with its number of examples and which of those was chosen"
    compute: ClassVar[str] = "as FedAvg, and num_hypotheses passes over training and validation data"

    num_hypotheses: Count = 5  # q
    """Number of models."""

    @property
    def num_models(self) -> int:
        """How many models there are."""
        return self.num_hypotheses
