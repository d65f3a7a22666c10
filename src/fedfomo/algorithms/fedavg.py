"""FedAvg (McMahan et al., 2017): one global model, the average of what clients trained from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Memory, Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.local_training import Penalty
from fedfomo.core.messages import Parameters


@dataclass(frozen=True)
class State:
    """The global model."""

    model: Parameters


@dataclass(frozen=True)
class Download:
    """The global model."""

    model: Parameters


@dataclass(frozen=True)
class Upload:
    """A locally trained model and the number of examples behind it."""

    model: Parameters
    num_examples: int


def weighted_average(models: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return Σ w_n θ_n / Σ w_n, summed in float64 in the given order."""
    total = torch.zeros(models[0].shape, dtype=torch.float64)
    for model, weight in zip(models, weights, strict=True):
        total.add_(model.double(), alpha=float(weight))
    return (total / float(sum(weights))).float()


def group_averages(models: Sequence[Tensor], groups: Sequence[int]) -> tuple[Tensor, ...]:
    """Return the plain average of every group of models, and the mean of these averages."""
    members = {g: [model for model, of in zip(models, groups, strict=True) if of == g] for g in sorted(set(groups))}
    averages = [weighted_average(group, [1.0] * len(group)) for group in members.values()]
    return (*averages, weighted_average(averages, [1.0] * len(averages)))


def average_uploads(uploads: Mapping[ClientId, Upload], otherwise: Tensor) -> Tensor:
    """Average uploaded models by their numbers of training examples; without any example, return `otherwise`."""
    ordered = [uploads[client] for client in sorted(uploads) if uploads[client].num_examples > 0]
    if not ordered:
        return otherwise
    return weighted_average([upload.model for upload in ordered], [upload.num_examples for upload in ordered])


class AveragingServer(Algorithm[State, Download, Upload, Memory]):
    """The server's half of FedAvg, for methods that differ from it on clients alone."""

    def start_server(self, start: FederationInfo) -> State:
        """Start from the common initial model."""
        return State(start.initial)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the global model."""
        return Download(state.model)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Average the uploads; if none arrived, stay."""
        return State(average_uploads(uploads, otherwise=state.model))


class HasModel(Protocol):
    """A download with one model to use and to train from."""

    @property
    def model(self) -> Tensor:
        """The model."""
        ...


AnyState = TypeVar("AnyState")
AnyDownload = TypeVar("AnyDownload", bound=HasModel)


class FedAvgClient(Algorithm[AnyState, AnyDownload, Upload, None]):
    """The client's half of FedAvg, for methods that differ from it on the server alone, or by a penalty."""

    def personalise(self, client: Client, download: AnyDownload, memory: None) -> Personalised[None]:
        """Use the model that was sent as it is."""
        return Personalised(download.model, None)

    def train(self, client: Client, download: AnyDownload, memory: None) -> Trained[Upload, None]:
        """Train from the model that was sent."""
        model = client.train(download.model, penalty=self.penalty(download), epochs=self.epochs(client))
        return Trained(Upload(model, len(client.data.train)), None, model)

    def penalty(self, download: AnyDownload) -> Penalty | None:
        """Return what is added to the local objective: nothing."""
        return None

    def epochs(self, client: Client) -> int:
        """Return the epochs of a client in this round: E."""
        return client.trainer.epochs


@register("fedavg", paper="McMahan et al., 2017")
@dataclass(frozen=True)
class FedAvg(AveragingServer[None], FedAvgClient[State, Download]):
    """Train one global model; every client uses it."""

    compute: ClassVar[str] = "1: E epochs over the training data"
