"""pFedGraph (Ye et al.; ICML 2023): learn who should collaborate with whom from how alike their models are.

The server weighs, for each client, all models so that those which moved the same way from the start weigh more and
nobody strays far from FedAvg's weights. Training is drawn towards the direction of the models so mixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.clustering import cosines
from fedfomo.algorithms.fedavg import FedAvgClient, Upload, weighted_average
from fedfomo.algorithms.registry import register
from fedfomo.core.client import ClientId, FederationInfo
from fedfomo.core.messages import Coordinates, Parameters, Table
from fedfomo.core.options import NonNegative, Positive

# Models that differ less than this count as one, as in the authors' code.
ALIKE = 0.9


def onto_simplex(point: Tensor) -> Tensor:
    """Return the nearest point whose coordinates are at least 0 and sum to 1."""
    descending = point.sort(descending=True).values
    excess = (descending.cumsum(dim=0) - 1) / torch.arange(1, len(point) + 1, dtype=point.dtype)
    num_positive = int((descending > excess).sum())
    return (point - excess[num_positive - 1]).clamp(min=0.0)


def collaboration_weights(similarities: Tensor, sizes: Tensor, alpha: float) -> Tensor:
    """Return argmin_x α‖x‖² + (d − 2αq)ᵀx on the simplex, with d = −cosines and q_j = n_j/n.

    Completing the square, α‖x − (q − d/2α)‖² + a constant, shows that it is a projection.
    """
    return onto_simplex(sizes / sizes.sum() + similarities / (2 * alpha))


def similarities(models: Sequence[Tensor], initial: Tensor, num_trainable: int) -> Tensor:
    """Return cos(θ_i − θ⁰, θ_j − θ⁰) over the trainable coordinates; 1 above 0.9, 0 where a model has not moved."""
    alike = cosines([(model - initial)[:num_trainable] for model in models])
    return torch.where(alike > ALIKE, 1.0, alike)


@dataclass(frozen=True)
class CosinePenalty:
    """The term −strength · ⟨direction, θ⟩/‖θ‖: least where θ points along the direction."""

    direction: Tensor
    strength: float

    def add_gradient(self, gradient: Tensor, theta: Tensor) -> None:
        """Add −strength · (direction − ⟨direction, θ⟩ θ/‖θ‖²)/‖θ‖."""
        length = float(theta.norm())
        if length > 0:
            along = float((self.direction * theta).sum()) / length**2
            gradient.add_(self.direction - along * theta, alpha=-self.strength / length)


@dataclass(frozen=True)
class State:
    """Every client's latest upload, and the collaboration graph."""

    initial: Parameters  # θ⁰
    uploads: Mapping[int, Upload]
    graph: Table  # x: receiver × giver, among those who have uploaded, in the order of their ids
    num_trainable: int


@dataclass(frozen=True)
class Download:
    """The client's mixture of models, and the mixture of their directions."""

    model: Parameters  # Σ x_j θ_j
    direction: Coordinates | None  # Σ x_j θ_j/‖θ_j‖


@register("pfedgraph", paper="Ye et al., 2023")
@dataclass(frozen=True)
class PFedGraph(FedAvgClient[State, Download]):
    """Every client gets a mixture of the models that moved the same way as its own."""

    sends: ClassVar[str] = "2 models down (1 if lambda=0), 1 up with its number of examples"

    alpha: Positive = 0.8
    """How close the weights stay to FedAvg's; small: only the most alike collaborate."""
    lambda_: NonNegative = 0.01
    """Strength of the term that turns training towards the collaborators' direction (λ)."""

    def start_server(self, start: FederationInfo) -> State:
        """Start without models."""
        return State(start.initial, {}, torch.zeros(0, 0, dtype=torch.float64), start.layout.num_trainable)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send θ_i = Σ x_ij θ_j; to whoever has not uploaded yet, what FedAvg would."""
        if not state.uploads:
            return Download(state.initial, None)
        ids = sorted(state.uploads)
        models = [state.uploads[n].model for n in ids]
        sizes = [state.uploads[n].num_examples for n in ids]
        weights = state.graph[ids.index(to)].tolist() if to in ids else sizes
        directions = [torch.nn.functional.normalize(model[: state.num_trainable], dim=0) for model in models]
        direction = weighted_average(directions, weights) if self.lambda_ else None
        return Download(weighted_average(models, weights), direction)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Store the uploads, and draw the graph anew."""
        known = {**state.uploads, **{n: uploads[n] for n in sorted(uploads) if uploads[n].num_examples > 0}}
        if not known:
            return state
        ids = sorted(known)
        alike = similarities([known[n].model for n in ids], state.initial, state.num_trainable)
        sizes = torch.tensor([known[n].num_examples for n in ids], dtype=torch.float64)
        graph = torch.stack([collaboration_weights(row, sizes, self.alpha) for row in alike])
        return State(state.initial, known, graph, state.num_trainable)

    def penalty(self, download: Download) -> CosinePenalty | None:
        """Turn training towards the collaborators' direction."""
        return None if download.direction is None else CosinePenalty(download.direction, self.lambda_)
