"""FedAvgM (Hsu, Qi, Brown; 2019): FedAvg whose server moves with momentum.

What the average of a round would change is taken for a gradient. The server adds it to a velocity and moves the
global model by that, so that the directions in which rounds agree add up and those in which they differ cancel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from fedfomo.algorithms.fedavg import Download, FedAvgClient, Upload, average_uploads
from fedfomo.algorithms.registry import register
from fedfomo.core.client import ClientId, FederationInfo
from fedfomo.core.messages import Coordinates, Parameters
from fedfomo.core.options import Positive


@dataclass(frozen=True)
class State:
    """The global model and how fast it moves."""

    model: Parameters
    velocity: Coordinates  # v, of the trainable coordinates


def next_velocity(velocity: Tensor, change: Tensor, momentum: float) -> Tensor:
    """V ← β v + Δ."""
    return velocity * momentum + change


def moved(model: Tensor, velocity: Tensor, change: Tensor, rate: float, lookahead: float) -> Tensor:
    """θ ← θ − γ v; with Nesterov's lookahead β, θ ← θ − γ (β v + Δ)."""
    return model - rate * (lookahead * velocity + change if lookahead else velocity)


@register("fedavgm", paper="Hsu et al., 2019")
@dataclass(frozen=True)
class FedAvgM(FedAvgClient[State, Download]):
    """Train one global model that the server moves with momentum; every client uses it."""

    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.7  # β
    """Share of the last round's velocity kept in the next one."""
    server_rate: Positive = 1.0  # γ
    """Step along the velocity; with 1 − momentum, a long run moves at FedAvg's pace."""
    nesterov: bool = False
    """Move by where the velocity will be instead of where it is."""

    def start_server(self, start: FederationInfo) -> State:
        """Start from the common initial model, at rest."""
        return State(start.initial, torch.zeros(start.layout.num_trainable))

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the global model."""
        return Download(state.model)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Move by the velocity; if nothing arrived, stay, and keep the velocity for later."""
        if not any(upload.num_examples for upload in uploads.values()):
            return state
        average = average_uploads(uploads, otherwise=state.model)
        trainable = slice(len(state.velocity))
        before = state.model[trainable].double()
        change = before - average[trainable].double()  # Δ
        velocity = next_velocity(state.velocity.double(), change, self.momentum)
        after = moved(before, velocity, change, self.server_rate, self.momentum if self.nesterov else 0.0)
        # Departs from the paper: buffers are averaged, because a running variance that overshoots falls below zero.
        return State(torch.cat((after.float(), average[len(velocity) :])), velocity.float())
