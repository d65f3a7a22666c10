"""L2GD (Hanzely and Richtárik, 2020): own models that are drawn to their mean.

The objective is Σ f_i(x_i) + λ/2 Σ ‖x_i − x̄‖². Gradient steps on the first sum are local; a step on the second
one moves every model a share of the way to the mean, which takes one communication.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Parameters
from fedfomo.core.options import Fraction


@dataclass(frozen=True)
class State:
    """Every client's model as last uploaded, and their mean."""

    models: Mapping[int, Parameters]  # x_i
    mean: Parameters  # x̄


@dataclass(frozen=True)
class Download:
    """The mean of the clients' models."""

    mean: Parameters


@dataclass(frozen=True)
class Upload:
    """A client's own model."""

    own: Parameters


@dataclass(frozen=True)
class Memory:
    """A client's own model."""

    own: Parameters  # x_i


def pulled(own: Tensor, mean: Tensor, pull: float) -> Tensor:
    """The step on the penalty: x_i ← (1 − a) x_i + a x̄."""
    return torch.lerp(own, mean, pull)


@register("l2gd", paper="Hanzely and Richtárik, 2020")
@dataclass(frozen=True)
class L2gd(Algorithm[State, Download, Upload, Memory]):
    """Every client trains its own model, which moves a share of the way to the mean of all once a round."""

    sends: ClassVar[str] = "1 model down, 1 up"

    pull: Fraction = 0.3  # a = αλ/(np)
    """Share of the way to the mean that a client's model goes in each round."""

    def start_server(self, start: FederationInfo) -> State:
        """Start with the common initial model for a mean."""
        return State({}, start.initial)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the mean."""
        return Download(state.mean)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Replace the models that were uploaded; the mean is that of everybody's latest."""
        if not uploads:
            return state
        models = {**state.models, **{client: upload.own for client, upload in uploads.items()}}
        return State(models, weighted_average([models[n] for n in sorted(models)], [1.0] * len(models)))

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model."""
        return Memory(start.initial)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Move its own model towards the mean."""
        own = pulled(memory.own, download.mean, self.pull)
        return Personalised(own, Memory(own))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Take a round's local steps from there."""
        # Departs from the paper: fixed numbers of steps on loss and penalty, where the paper tosses a coin each time.
        own = client.train(memory.own)
        return Trained(Upload(own), Memory(own), own)
