"""MOCHA (Smith, Chiang, Sanjabi, Talwalkar; NeurIPS 2017) for neural networks: related tasks, with relations learnt.

Every client has a model w_t of its own, the t-th column of W, and the objective adds λ tr(WΩWᵀ) to the clients'
losses. Clients minimise it for their own columns, the server for Ω = Σ⁻¹: the more alike two models have become,
the more they are held together. The paper's own form, for linear models, is in `mocha_linear.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.local_training import ProximalTerm
from fedfomo.core.messages import Parameters, Table
from fedfomo.core.options import Count, NonNegative

SMALLEST_EIGENVALUE = 1e-7
BLOCK = 65_536  # coordinates that are multiplied at once: all of them in float64 would not fit


@dataclass(frozen=True)
class State:
    """Every client's model as last uploaded, and how the clients are related."""

    rounds: int  # collected so far
    models: Mapping[int, Parameters]  # the columns of W
    precision: Table  # Ω over all clients, centred over those it was learnt from; of others, the rows of I
    num_trainable: int


@dataclass(frozen=True)
class Download:
    """Where the others hold this client's model, and how firmly; nowhere before anybody has uploaded."""

    anchor: Parameters | None
    stiffness: float


@dataclass(frozen=True)
class Upload:
    """A client's own model."""

    own: Parameters


@dataclass(frozen=True)
class Memory:
    """A client's own model."""

    own: Parameters  # w_t


def gram_matrix(models: Sequence[Tensor], num_trainable: int) -> Tensor:
    """Return the inner products of the models' deviations from their mean, in float64."""
    gram = torch.zeros(len(models), len(models), dtype=torch.float64)
    for start in range(0, num_trainable, BLOCK):
        block = torch.stack([model[start : min(start + BLOCK, num_trainable)] for model in models]).double()
        block -= block.mean(dim=0)
        gram += block @ block.T
    return gram


def relations(gram: Tensor) -> Tensor:
    """Return Σ = (WᵀW)^½ / tr (WᵀW)^½, which minimises the objective over relations; eigenvalues are kept positive."""
    values, vectors = torch.linalg.eigh(gram)
    roots = values.clamp(min=SMALLEST_EIGENVALUE).sqrt()
    return (vectors * (roots / roots.sum())) @ vectors.T


def centred(precision: Tensor) -> Tensor:
    """Return CΩC with C = I − 11ᵀ/m: it penalises deviations from the mean of the models and leaves the mean alone."""
    return precision - precision.mean(0, keepdim=True) - precision.mean(1, keepdim=True) + precision.mean()


def anchor_of(position: int, models: Sequence[Tensor], coupling: Tensor) -> tuple[Tensor, float]:
    """Return a and s such that λ Σ_{t'} Ω_tt'⟨w_t, w_t'⟩ pulls w_t to a, with the gradient 2λs(w_t − a)."""
    row = coupling[position].tolist()
    others = [n for n in range(len(models)) if n != position]
    stiffness = -sum(row[n] for n in others)  # Ω_tt, since rows of CΩC sum to zero
    if stiffness <= 0:  # alone
        return models[position], 0.0
    return weighted_average([models[n] for n in others], [-row[n] for n in others]), stiffness


@register("mocha", paper="Smith et al., 2017")
@dataclass(frozen=True)
class Mocha(Algorithm[State, Download, Upload, Memory]):
    """Every client trains its own model, held near those of the clients to which it turns out to be related."""

    sends: ClassVar[str] = "1 model down, 1 up"

    lambda_: NonNegative = 0.03  # λ
    """Weight of the relations beside the clients' losses."""
    relate_every: Count = 5
    """Rounds after which relations are learnt again."""

    def start_server(self, start: FederationInfo) -> State:
        """Start with everybody equally related to the mean of all: Ω = I."""
        return State(0, {}, torch.eye(start.num_clients, dtype=torch.float64), start.layout.num_trainable)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the one point to which the penalty pulls this client's model."""
        ids = sorted(state.models)
        models = [state.models[n] for n in ids]
        if to in state.models:
            # Departs from the paper: deviations from the mean are related, or the penalty would shrink the mean too.
            return Download(*anchor_of(ids.index(to), models, centred(state.precision[ids][:, ids])))
        return Download(weighted_average(models, [1.0] * len(ids)) if ids else None, 1.0)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Replace the models that were uploaded; learn the relations anew when it is time."""
        models = {**state.models, **{client: upload.own for client, upload in uploads.items()}}
        precision, rounds = state.precision, state.rounds + 1
        if rounds % self.relate_every == 0 and models:
            ids = sorted(models)
            covariance = len(ids) * relations(gram_matrix([models[n] for n in ids], state.num_trainable))
            precision = torch.eye(len(precision), dtype=torch.float64)
            # Deviations sum to zero, so the inverse is huge along 11ᵀ; a client that joins later must not meet that.
            precision[torch.tensor(ids)[:, None], torch.tensor(ids)] = centred(torch.linalg.inv(covariance))
        return State(rounds, models, precision, state.num_trainable)

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model."""
        return Memory(start.initial)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Use its own model; without training data only the penalty is left, and its minimum is the anchor."""
        if len(client.data.train) == 0 and download.anchor is not None:
            return Personalised(download.anchor, memory)
        return Personalised(memory.own, memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train its own model under the pull of the others."""
        pull: ProximalTerm | None = None
        if download.anchor is not None:
            # Departs from the paper: no step goes further than the anchor, or nearly equal models would fly apart.
            firmest = 1 / client.learning_rate if client.learning_rate else math.inf
            pull = ProximalTerm(download.anchor, min(2 * self.lambda_ * download.stiffness, firmest))
        own = client.train(memory.own, penalty=pull)
        return Trained(Upload(own), Memory(own), own)
