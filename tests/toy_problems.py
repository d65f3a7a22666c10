"""Small federations that tests run in.

Two kinds. In a *scalar* world a model is one number x, a client's loss is (x − target)², and every round can be
worked out by hand. In a *points* world clients classify points in the plane with a real network, large enough for
the simulator to keep it in files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.parameters import Layout, Slot
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.testing import InProcess, points_problem, run_rounds
from fedfomo.testing.toy_federation import (
    ROUNDS,
    DivergesOnce,
    client_of,
    digest,
    federation_of,
    fingerprint,
    initialised,
    not_a_number,
    perceptron,
    points,
    with_batch_norm,
    with_data,
    with_dropout,
)

__all__ = [  # what the tests share with whoever writes a method
    "ROUNDS",
    "DivergesOnce",
    "InProcess",
    "client_of",
    "digest",
    "federation_of",
    "fingerprint",
    "initialised",
    "not_a_number",
    "perceptron",
    "points",
    "points_problem",
    "run_rounds",
    "with_batch_norm",
    "with_data",
    "with_dropout",
]

HALFWAY = Sgd(learning_rate=0.25, weight_decay=0.0, learning_rate_decay=1.0, epochs=1)
"""One step x ← x − 0.25 · 2(x − target): half of the way to the training target."""


class KeepLines(Callback):
    """Keeps every round's line of the log."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self._lines = lines

    def round_done(self, finished: FinishedRound) -> None:
        self._lines.append(dict(finished.line))


class Scalar(nn.Module):
    """The model that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs))


def squared_gap(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels) ** 2


def scalar_model(module: nn.Module | None = None) -> Model:
    return Model(module or Scalar(), squared_gap, lambda outputs, labels: -(outputs - labels).abs())


def targets(*values: float) -> Examples:
    """Return one example for each target value; with several, the loss is least at their mean."""
    return Examples(torch.zeros(len(values), 1), torch.tensor(values, dtype=torch.float32))


def scalar_client(
    target: float | None, train_target: float | None = None, id: ClientId = 0, round: int = 1, seed: int = 0
) -> Client:
    """Return a client that judges by one target and trains towards another; None means that it has no data."""
    train = targets() if train_target is None else targets(train_target)
    validation = targets() if target is None else targets(target)
    data = ClientData(train, validation, targets())
    return client_of(FederatedProblem(scalar_model(), torch.zeros(1), [data], HALFWAY, seed), 0, round, id)


def scalar_problem(clients: Sequence[tuple[float | None, float | None]], seed: int = 0) -> FederatedProblem:
    """Return a federation of (training target, validation target) that starts at x = 0."""
    data = [
        ClientData(*(targets() if t is None else targets(t) for t in (train, validation)), test=targets(0.0))
        for train, validation in clients
    ]
    return FederatedProblem(scalar_model(), torch.zeros(1), data, HALFWAY, seed)


def point(*coordinates: float) -> Tensor:
    return torch.tensor(coordinates, dtype=torch.float32)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ids(*clients: int) -> Tensor:
    return torch.tensor(clients, dtype=torch.int64)


def start_of(num_clients: int, *initial: float) -> FederationInfo:
    """Return the outset of a federation whose models are points."""
    theta = point(*initial)
    layout = Layout((Slot("x", theta.shape, 0),), len(theta), len(theta))
    return FederationInfo(theta, layout, num_clients, ROUNDS)


def gradient_at(model: Model, theta: Tensor, examples: Examples) -> Tensor:
    """Return the gradient of the mean loss at θ with respect to the trainable coordinates."""
    model.load(theta)
    return model.backward(examples).clone()
