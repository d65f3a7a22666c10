"""MOCHA as the repository of LG-FedAvg (Liang et al., 2020) runs it, errors included, to compare with its tables.

Own networks and a fixed relation Ω, never learnt, under a penalty 10⁻ᶠ(‖W‖² + tr(WΩWᵀ)). Meant was Ω = I − 11ᵀ/m,
a pull to the mean. A matrix of ones in the place of I, squared element by element, makes it (1 − 1/m)² 11ᵀ instead:
a pull of the models' *sum* to zero. The factor is so small that this is nearly local training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.local import Memory
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Parameters

ROWS_AT_ONCE = 4000  # what is left below a multiple of this takes no part in tr(WΩWᵀ)


@dataclass(frozen=True)
class State:
    """The models of the last round."""

    models: Mapping[int, Parameters]


@dataclass(frozen=True)
class Download:
    """The mean of the other clients' models in the last round, and how many these are."""

    mean: Parameters | None
    num_others: int


@dataclass(frozen=True)
class Upload:
    """A client's own model."""

    own: Parameters


def factor_of(num_trainable: int) -> float:
    """Return 10⁻ᶠ with f = ⌊log₁₀ d + 1⌋ + 1."""
    return 10.0 ** -(int(math.log10(num_trainable) + 1) + 1)


@dataclass(frozen=True)
class SumPenalty:
    """The term 10⁻ᶠ(‖w_t‖² + (1 − 1/m)² ‖Σ w_t'‖²), the second part over whole blocks of rows only."""

    others: Tensor  # their sum
    num_clients: int  # m

    def add_gradient(self, gradient: Tensor, theta: Tensor) -> None:
        """Add 2 · 10⁻ᶠ(w_t + (1 − 1/m)² Σ w_t') to a gradient."""
        factor = 2 * factor_of(len(theta))
        gradient.add_(theta, alpha=factor)
        whole = slice(len(theta) // ROWS_AT_ONCE * ROWS_AT_ONCE)
        relation = (1 - 1 / self.num_clients) ** 2
        gradient[whole].add_(theta[whole] + self.others[whole], alpha=factor * relation)


@register("mocha-repository", paper="Liang et al., 2020, published code")
@dataclass(frozen=True)
class MochaRepository(Algorithm[State, Download, Upload, Memory]):
    """Own models under the all but inert penalty of a published implementation, errors included."""

    sends: ClassVar[str] = "1 model down, 1 up"

    def start_server(self, start: FederationInfo) -> State:
        """Start with the common initial model for everybody's."""
        return State(dict.fromkeys(start.members, start.initial))

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send what the penalty needs of the others."""
        others = [state.models[n] for n in sorted(state.models) if n != to]
        return Download(weighted_average(others, [1.0] * len(others)) if others else None, len(others))

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Keep the models of this round; if none arrived, those of the last."""
        return State({client: uploads[client].own for client in sorted(uploads)} or state.models)

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model."""
        return Memory(start.initial)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Use its own model; who has no training data, for which nothing is provided, takes the others' mean."""
        if len(client.data.train) == 0 and download.mean is not None:
            return Personalised(download.mean, memory)
        return Personalised(memory.own, memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train its own model under the penalty; the others stay as they were when the round began."""
        others = torch.zeros_like(memory.own) if download.mean is None else download.mean * download.num_others
        own = client.train(memory.own, penalty=SumPenalty(others, download.num_others + 1))
        return Trained(Upload(own), Memory(own), own)
