"""FedAvg (McMahan et al., 2017): one global model, the average of what clients trained from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Parameters
from fedfomo.core.round import Personalised, Trained


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


class AveragingServer:
    """The server's half of FedAvg, and of every method that differs from it on clients alone."""

    def start_server(self, start: FederationInfo) -> State:
        """Start from the common initial model."""
        return State(start.initial)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the global model."""
        return Download(state.model)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Average the uploads; if none arrived, stay."""
        return State(average_uploads(uploads, otherwise=state.model))


class FedAvgClient:
    """The client's half of FedAvg, and of every method that differs from it on the server alone."""

    def start_client(self, start: FederationInfo) -> None:
        """Remember nothing."""

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Use the model that was sent as it is."""
        return Personalised(download.model, None)

    def train(self, client: Client, download: Download, memory: None) -> Trained[Upload, None]:
        """Train from the model that was sent."""
        model = client.train(download.model)
        return Trained(Upload(model, len(client.data.train)), None, model)


@dataclass(frozen=True)
class FedAvg(AveragingServer, FedAvgClient):
    """Train one global model; every client uses it."""

    sends: ClassVar[str] = "1 model down, 1 up with its number of examples"
    compute: ClassVar[str] = "1: E epochs over the training data"
