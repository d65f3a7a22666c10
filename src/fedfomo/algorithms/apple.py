"""APPLE (Luo and Wu, IJCAI 2022): every client learns how much of whose model to take.

Each client has a *core* model, which all others may download. It uses the combination Σ_j p_ij w_j of all cores
and descends, on its own loss, both on its own core and on the weights p_i.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Steps, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Ids, Numbers, Parameters
from fedfomo.core.options import Fraction, NonNegative


@dataclass(frozen=True)
class Upload:
    """A client's core model and the number of examples behind it."""

    core: Parameters
    num_examples: int


@dataclass(frozen=True)
class State:
    """Every client's core model as last uploaded."""

    cores: Mapping[int, Upload]


@dataclass(frozen=True)
class Download:
    """The core models of the other clients, and the numbers of examples behind them."""

    ids: Ids
    num_examples: Numbers
    cores: tuple[Parameters, ...]


@dataclass(frozen=True)
class Memory:
    """A client's core model, and by how much its weights have left the initial ones."""

    core: Parameters  # w_i
    changes: Numbers  # p_i − p⁰, an entry per client


def initial_weights(num_examples: Tensor) -> Tensor:
    """p⁰_j = n_j / n; alike if nobody has examples."""
    if float(num_examples.sum()) == 0:
        num_examples = torch.ones_like(num_examples)
    return num_examples / num_examples.sum()


def combine(cores: Tensor, weights: Tensor, num_trainable: int) -> Tensor:
    """Return Σ_j p_j w_j; statistics, which must not turn negative, are averaged with the positive weights."""
    positive = initial_weights(weights.clamp(min=0))
    combined = torch.empty(cores.shape[1])
    combined[:num_trainable] = weights.float() @ cores[:, :num_trainable]
    combined[num_trainable:] = positive.float() @ cores[:, num_trainable:]
    return combined


def candidates(client: Client, download: Download, memory: Memory) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ids, cores, weights p_i and initial weights p⁰ of all clients whose core this one has, its own first."""
    ids = torch.cat((torch.tensor([client.id]), download.ids))
    own_size = torch.tensor([len(client.data.train)], dtype=torch.float64)
    initial = initial_weights(torch.cat((own_size, download.num_examples)))
    return ids, torch.stack((memory.core, *download.cores)), initial + memory.changes[ids], initial


def penalty_schedule(round: int, rounds: int, share: float) -> float:
    """λ(r): falls from 1 to 0 along half a cosine within the first share of the rounds."""
    last = share * rounds
    return (math.cos(math.pi * round / last) + 1) / 2 if round < last else 0.0


@register("apple", paper="Luo and Wu, 2022")
@dataclass(frozen=True)
class Apple(Algorithm[State, Download, Upload, Memory]):
    """Combine all clients' models by weights that each client learns along with its own model."""

    sends: ClassVar[str] = "all other clients' models and numbers of examples down, 1 up with its number of examples"
    steps: ClassVar[Steps] = "gradients"

    weight_rate: NonNegative = 0.003
    """Step size of the weights."""
    mu: NonNegative = 0.1
    """Strength of the penalty that holds the weights near the initial ones, at first."""
    cautious_share: Fraction = 0.1
    """Share of the rounds in which that penalty falls to 0."""
    full_steps: bool = True
    """Divide a core's steps by its weight (the initial one, if that is larger), so that they are the learning
    rate's; without it they shrink with the number of clients."""

    def start_server(self, start: FederationInfo) -> State:
        """Start without models."""
        return State({})

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the core models of all others."""
        ids = [n for n in sorted(state.cores) if n != to]
        sizes = torch.tensor([state.cores[n].num_examples for n in ids], dtype=torch.float64)
        return Download(torch.tensor(ids, dtype=torch.int64), sizes, tuple(state.cores[n].core for n in ids))

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Replace the core models that were uploaded."""
        return State({**state.cores, **uploads})

    def forget_clients(self, state: State, members: Collection[ClientId]) -> State:
        """Drop the core models of others, which would be handed out as they are."""
        return State({client: core for client, core in state.cores.items() if client in members})

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model and the initial weights."""
        return Memory(start.initial, torch.zeros(start.num_clients, dtype=torch.float64))

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Combine the cores, its own among them."""
        _, cores, weights, _ = candidates(client, download, memory)
        return Personalised(combine(cores, weights, client.num_trainable), memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Descend on its own core and on all weights, by the gradient of the loss of the combination."""
        ids, cores, weights, initial = candidates(client, download, memory)
        hold = self.mu * penalty_schedule(client.round, client.start.rounds, self.cautious_share)
        # Departs from the paper: with weights of 1/K, steps of the learning rate × p_ii would hardly move anything.
        smallest = float(initial[0]) if self.full_steps else 1.0
        num_trainable, descent = client.num_trainable, client.descent()
        for batch in descent.batches():
            combined = combine(cores, weights, num_trainable)
            gradient = descent.gradient(combined, batch)
            slopes = (cores[:, :num_trainable] @ gradient).double()
            share = float(weights[0]) / max(float(weights[0]), smallest)
            descent.step(cores[0], gradient, share)
            cores[0, num_trainable:] = combined[num_trainable:]
            weights = weights - self.weight_rate * (slopes + hold * (weights - initial))
        changes = memory.changes.clone()
        changes[ids] = weights - initial
        core = cores[0].clone()
        model = combine(cores, weights, num_trainable)
        return Trained(Upload(core, len(client.data.train)), Memory(core, changes), model)
