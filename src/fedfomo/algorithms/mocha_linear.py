"""MOCHA (Smith, Chiang, Sanjabi, Talwalkar; NeurIPS 2017) in the paper's own form: linear models, solved in the dual.

Clients are tasks with linear models W = [w_1 … w_m] and hinge loss, one class against the rest; the objective is
Σ_t mean_i hinge(y w_tᵀx) + λ/2 tr(WΩWᵀ). A client improves the dual variables of its own examples (SDCA); what it
sends is b_t = mean_i α_i x_i, from which all models follow: w_t = Σ_t' Σ_tt' b_t' / λ. The relations Σ = Ω⁻¹ are
learnt from the models in turn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedfomo.algorithms.mocha import relations
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Steps, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Coordinates, Table
from fedfomo.core.options import Count, Positive
from fedfomo.core.parameters import Layout
from fedfomo.errors import require


@dataclass(frozen=True)
class State:
    """What the clients' dual variables amount to, and how the clients are related."""

    rounds: int  # collected so far
    sums: Table  # b_t, a row per client
    covariance: Table  # Σ
    num_members: int  # m: how many were there from the start


@dataclass(frozen=True)
class Download:
    """What the others contribute to this client's model, and how much its own examples may."""

    others: Coordinates  # Σ_{t'≠t} Σ_tt' b_t' / λ
    variance: float  # Σ_tt
    spread: float  # ρ


@dataclass(frozen=True)
class Upload:
    """What the client's dual variables amount to."""

    sum: Coordinates  # b_t


@dataclass(frozen=True)
class Memory:
    """A client's dual variables, one per example and class, and what they amount to."""

    dual: Table | None  # α, signed; none before the first training
    sum: Coordinates  # b_t


class LinearModel(nn.Module):
    """One score per class, linear in the inputs."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_classes, num_features))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the scores."""
        return functional.linear(features_of(inputs, self.weight.shape[1]), self.weight, self.bias)


def linear_shape(layout: Layout, side: int) -> tuple[int, int]:
    """Return the numbers of features and classes that a network's first and last layers speak of."""
    shapes = [slot.shape for slot in layout.slots if len(slot.shape) >= 2]
    is_readable = bool(shapes) and len(shapes[0]) in (2, 4)
    require(is_readable, "mocha-linear takes vectors and images, for a network that begins and ends in weights")
    first, last = shapes[0], shapes[-1]
    return first[1] * (side**2 if len(first) == 4 else 1), last[0]


def features_of(inputs: Tensor, num_features: int) -> Tensor:
    """Flatten inputs; images of another size than expected are averaged to it."""
    if inputs.dim() == 4 and inputs[0].numel() != num_features:
        inputs = functional.adaptive_avg_pool2d(inputs, math.isqrt(num_features // inputs.shape[1]))
    return inputs.flatten(1)


def with_ones(features: Tensor) -> Tensor:
    """Append a feature that is always 1, whose weight is the bias."""
    return torch.cat((features, torch.ones(len(features), 1, dtype=features.dtype)), dim=1)


def theta_of(model: Tensor) -> Tensor:
    """Lay a model with its bias in the last column out as the network's θ."""
    return torch.cat((model[:, :-1].flatten(), model[:, -1])).float()


def one_against_rest(labels: Tensor, num_classes: int) -> Tensor:
    """Return y: +1 where a class is the example's, −1 elsewhere."""
    return torch.where(labels[:, None] == torch.arange(num_classes), 1.0, -1.0).double()


def sum_of(dual: Tensor, features: Tensor) -> Tensor:
    """b_t = mean_i α_i x_i."""
    return (dual.T @ features / len(features)).flatten().float()


def ascend(
    dual: Tensor, features: Tensor, signs: Tensor, model: Tensor, variance: float, strength: float, order: Tensor
) -> Tensor:
    """Maximise the dual over one example after the other, for all classes at once.

    With u = y xᵀ(w_t + ρΔw_t), an example's variable becomes y · clip(yα + λn(1 − u) / (ρΣ_tt ‖x‖²), 0, 1);
    `variance` is ρΣ_tt.
    """
    dual, ahead = dual.clone(), model.clone()  # ahead: w_t + ρΔw_t
    scale = variance / (strength * len(features))
    squares = (features**2).sum(dim=1)
    for example in order.tolist():
        x, sign, old = features[example], signs[example], dual[example].clone()
        best = sign * old + (1 - sign * (ahead @ x)) / (scale * squares[example])
        dual[example] = sign * best.clamp(0.0, 1.0)
        ahead.addr_(dual[example] - old, x, alpha=scale)
    return dual


def spread_of(covariance: Tensor) -> float:
    """Return ρ = max_t Σ_t' |Σ_tt'| / Σ_tt, by which clients that add up their steps must be careful."""
    return float((covariance.abs().sum(dim=1) / covariance.diagonal()).max())


@register("mocha-linear", paper="Smith et al., 2017")
@dataclass(frozen=True)
class MochaLinear(Algorithm[State, Download, Upload, Memory]):
    """Linear models of related tasks, trained in the dual; the relations are learnt."""

    sends: ClassVar[str] = "1 linear model down; up, as large, a weighted mean of the examples for each class"
    compute: ClassVar[str] = "as many examples as FedAvg, on a linear model"
    steps: ClassVar[Steps] = "plain"
    reads_records: ClassVar[bool] = True

    lambda_: Positive = 0.001  # λ
    """Weight of the relations beside the clients' losses."""
    relate_every: Count = 5
    """Rounds after which relations are learnt again."""
    side: Count = 32
    """Images for a convolutional network, which does not tell their size, are averaged to so many pixels a side."""

    def network(self, module: nn.Module) -> LinearModel:
        """Predict with a linear model that has as many inputs and classes as the network."""
        return LinearModel(*linear_shape(Layout.of(module), self.side)).to(next(module.parameters()).device)

    def start_server(self, start: FederationInfo) -> State:
        """Start with unrelated clients: Σ = I/m."""
        sums = torch.zeros(start.num_clients, self._size(start), dtype=torch.float64)
        num_members = len(start.members)
        return State(0, sums, torch.eye(start.num_clients, dtype=torch.float64) / num_members, num_members)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send what the other clients' sums contribute."""
        shares = state.covariance[to] / self.lambda_
        others = shares @ state.sums - shares[to] * state.sums[to]
        return Download(others.float(), float(state.covariance[to, to]), spread_of(state.covariance))

    def validate(self, state: State, upload: Upload) -> str | None:
        """Refuse sums of another size."""
        expected = state.sums.shape[1]
        return None if len(upload.sum) == expected else f"'sum' has {len(upload.sum)} coordinates, not {expected}"

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Replace the sums that were uploaded; learn the relations from all models when it is time."""
        sums, covariance, rounds = state.sums.clone(), state.covariance, state.rounds + 1
        for client, upload in uploads.items():
            sums[client] = upload.sum.double()
        if rounds % self.relate_every == 0:
            covariance = self._related(covariance, sums, state.num_members)
        return State(rounds, sums, covariance, state.num_members)

    def start_client(self, start: FederationInfo) -> Memory:
        """Start with all dual variables zero."""
        return Memory(None, torch.zeros(self._size(start)))

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Use the model that follows from all dual variables."""
        return Personalised(theta_of(self._model(client, download, memory.sum)), memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Visit every example once an epoch, in random order."""
        examples, rng = client.data.train, client.random("order")
        num_features, num_classes = linear_shape(client.start.layout, self.side)
        features = with_ones(features_of(examples.inputs, num_features).double())
        signs = one_against_rest(examples.labels, num_classes)
        dual = torch.zeros_like(signs) if memory.dual is None else memory.dual
        model = self._model(client, download, memory.sum)
        order = torch.cat([torch.randperm(len(examples), generator=rng) for _ in range(client.trainer.epochs)])
        client.effort.gradients += len(order)
        dual = ascend(dual, features, signs, model, download.spread * download.variance, self.lambda_, order)
        total = sum_of(dual, features)
        return Trained(Upload(total), Memory(dual, total), theta_of(self._model(client, download, total)))

    def _model(self, client: Client, download: Download, own_sum: Tensor) -> Tensor:
        """w_t = Σ_t' Σ_tt' b_t' / λ, a row per class."""
        model = download.others.double() + download.variance / self.lambda_ * own_sum.double()
        return model.view(linear_shape(client.start.layout, self.side)[1], -1)

    def _related(self, covariance: Tensor, sums: Tensor, num_members: int) -> Tensor:
        """Learn Σ among the clients that were heard of; the others stay unrelated, with 1/m each."""
        heard = sums.any(dim=1).nonzero().flatten()
        models = (covariance @ sums / self.lambda_)[heard]
        related = torch.eye(len(sums), dtype=torch.float64) / num_members
        if len(heard):
            related[heard[:, None], heard] = relations(models @ models.T) * len(heard) / num_members
        return related

    def _size(self, start: FederationInfo) -> int:
        num_features, num_classes = linear_shape(start.layout, self.side)
        return (num_features + 1) * num_classes
