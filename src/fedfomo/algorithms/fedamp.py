"""FedAMP, federated attentive message passing (Huang et al.; AAAI 2021).

The server keeps every client's model w_i apart and hands each client a mixture u_i of its own and the others', in
which those near to its own weigh more; training then pulls w_i towards u_i. So models of similar clients approach
each other. The model that a client uses is w_i.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import Download, weighted_average
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.local_training import ProximalTerm
from fedfomo.core.messages import Parameters, Table
from fedfomo.core.options import NonNegative, Positive
from fedfomo.errors import require


def attraction(squared_distances: Tensor, sigma: float) -> Tensor:
    """Return A′(x) = e^{−x/σ}/σ, the slope of A(x) = 1 − e^{−x/σ}."""
    return torch.exp(-squared_distances / sigma) / sigma


def message_weights(squared_distances: Tensor, alpha: float, sigma: float) -> Tensor:
    """Return ξ_ij = α A′(‖w_i − w_j‖²) for i ≠ j, and ξ_ii = 1 − Σ_j ξ_ij."""
    weights = alpha * attraction(squared_distances, sigma).fill_diagonal_(0.0)
    # Departs from the paper, which lets α be any number: beyond this, a client's own share would be below 0.
    weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1.0)
    return weights + torch.diag(1 - weights.sum(dim=1))


def relative_scale(squared_distances: Tensor, alpha: float, sigma: float) -> tuple[float, float]:
    """Return α and σ for which the client that takes most from others takes the share `alpha`.

    σ is counted in units of the median squared distance.
    """
    num = len(squared_distances)
    others = squared_distances[~torch.eye(num, dtype=torch.bool)].view(num, num - 1)
    scale = sigma * (float(others.median()) or 1.0)
    return alpha / float(attraction(others, scale).sum(dim=1).max().clamp(min=torch.finfo().tiny)), scale


def squared_gaps(models: Sequence[Tensor], num_trainable: int) -> Tensor:
    """Return ‖w_i − w_j‖² over the trainable coordinates, in float64."""
    matrix = torch.stack([model[:num_trainable] for model in models]).double()
    return torch.stack([(matrix - row).square().sum(dim=1) for row in matrix])


@dataclass(frozen=True)
class State:
    """Every client's latest model, and the weights with which they are mixed."""

    initial: Parameters
    models: Mapping[int, Parameters]  # w_i
    weights: Table  # ξ, among those who have a model, in the order of their ids
    num_trainable: int


@dataclass(frozen=True)
class Upload:
    """A locally trained model."""

    model: Parameters


@dataclass(frozen=True)
class Memory:
    """A client's personal model, once it has trained one."""

    own: Parameters | None  # w_i


@register("fedamp", paper="Huang et al., 2021")
@dataclass(frozen=True)
class FedAmp(Algorithm[State, Download, Upload, Memory]):
    """Every client is pulled towards a mixture of the models that are near to its own."""

    sends: ClassVar[str] = "1 model down, 1 up"

    scale: Literal["relative", "absolute"] = "relative"
    """Count alpha and sigma relative to the distances between models, or as they are."""
    alpha: NonNegative = 0.5
    """Step of message passing (α); relative: the largest share that any client takes from others."""
    sigma: Positive = 0.1
    """How fast attraction fades with squared distance (σ); relative: in units of the median squared distance."""
    strength: NonNegative = 0.1
    """Strength of the pull towards the mixture in training; λ/α in the paper."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_share = self.scale == "absolute" or self.alpha <= 1
        require(is_share, f"a relative alpha is a share, between 0 and 1, not {self.alpha}")

    def start_server(self, start: FederationInfo) -> State:
        """Start without models."""
        return State(start.initial, {}, torch.zeros(0, 0, dtype=torch.float64), start.layout.num_trainable)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send u_i = Σ_j ξ_ij w_j; to whoever has no model yet, the mean of all."""
        if not state.models:
            return Download(state.initial)
        ids = sorted(state.models)
        weights = state.weights[ids.index(to)].tolist() if to in ids else [1.0] * len(ids)
        return Download(weighted_average([state.models[n] for n in ids], weights))

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Store the models, and weigh them anew."""
        models = {**state.models, **{n: uploads[n].model for n in sorted(uploads)}}
        if not models:
            return state
        gaps = squared_gaps([models[n] for n in sorted(models)], state.num_trainable)
        alpha, sigma = self.alpha, self.sigma
        if self.scale == "relative" and len(models) > 1:
            alpha, sigma = relative_scale(gaps, alpha, sigma)
        return State(state.initial, models, message_weights(gaps, alpha, sigma), state.num_trainable)

    def start_client(self, start: FederationInfo) -> Memory:
        """Have no model yet."""
        return Memory(None)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Use the personal model; without one, the mixture."""
        return Personalised(download.model if memory.own is None else memory.own, memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train from the mixture, and be pulled back to it: w_i = argmin f_i(w) + strength/2 · ‖w − u_i‖²."""
        own = client.train(download.model, penalty=ProximalTerm(download.model, self.strength))
        return Trained(Upload(own), Memory(own), own)
