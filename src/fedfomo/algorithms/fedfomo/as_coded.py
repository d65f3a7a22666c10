"""FedFomo as its authors' code has it (NVlabs/FedFomo, 2021), where that differs from the paper."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor

from fedfomo.algorithms.clustering import group_by_affinity
from fedfomo.algorithms.fedavg import group_averages
from fedfomo.algorithms.fedfomo import state as paper
from fedfomo.algorithms.fedfomo.core import FedFomo
from fedfomo.algorithms.fedfomo.state import Download, EvaluationWeights, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.client import ClientId, FederationInfo
from fedfomo.core.messages import Parameters
from fedfomo.core.options import Count, CountOrZero
from fedfomo.core.vectors import distances_from


@dataclass(frozen=True)
class State(paper.State):
    """The server's state, and averages of the last uploads."""

    averages: tuple[Parameters, ...] = ()

    @cached_property
    def uploaders(self) -> Tensor:
        """Everybody who has ever uploaded, in ascending order."""
        return torch.tensor(sorted(self.models), dtype=torch.int64)


def affinity_increments(weights: Tensor, update: str) -> Tensor:
    """Return what is added to p_i: w itself (paper), or w / |Σ w| (the authors' code)."""
    if update == "raw":
        return weights
    total = weights.sum().abs()
    return weights / total if total > 0 else torch.zeros_like(weights)


@register("fedfomo-as-coded", paper="Zhang et al., ICLR 2021, authors' code")
@dataclass(frozen=True)
class FedFomoAsCoded(FedFomo):
    """FedFomo as its authors' code has it: L1 norm, normalised affinity, averages as candidates."""

    sends: ClassVar[str] = "M + num_averages + 1 models down, 1 up with weights and shares of those that it was sent"
    compute: ClassVar[str] = "as FedAvg, and M + num_averages + 3 passes over the validation data"

    num_downloads: Count = 4  # with the client's own model the code's n = 5
    """Models of other clients sent to each client a round; its own is always a candidate and not counted."""
    norm: Literal["l2", "l1"] = "l1"
    """Distance between models; the paper writes a norm without a name, usually read as l2."""
    affinity_update: Literal["raw", "normalised"] = "normalised"
    """Add weights to the affinity as they are, as in the paper, or divided by |their sum|."""
    availability: Literal["last_round", "latest"] = "last_round"
    """Send only models uploaded in the last round, as paper and code do, or each client's latest however old."""
    num_averages: CountOrZero = 5
    """Averages of this many clusters of clients, and their mean, as further candidates; 0 for none, as in the paper."""

    def start_server(self, start: FederationInfo) -> State:
        """Start without models, and with P = diag(1, …, 1)."""
        return State.start(start.num_clients)

    def available(self, state: paper.State, to: ClientId, rng: torch.Generator) -> Tensor:
        """Return whose models can be sent to a client."""
        if self.availability == "last_round":
            return super().available(state, to, rng)
        senders = cast(State, state).uploaders
        return senders[senders != to]

    def configure_client(self, state: paper.State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the averages behind the models."""
        download = super().configure_client(state, to, rng)
        return replace(download, models=(*download.models, *cast(State, state).averages))

    def aggregate(self, state: paper.State, uploads: Mapping[ClientId, Upload]) -> paper.State:
        """Average the uploads of each cluster of clients that P shows; without uploads, keep the averages."""
        after = super().aggregate(state, uploads)
        if not (self.num_averages and uploads):
            return after
        groups = group_by_affinity(after.affinity.submatrix(after.last_uploaders), self.num_averages)
        models = [after.models[n] for n in after.last_uploaders.tolist()]
        return replace(cast(State, after), averages=group_averages(models, groups))

    def distances(self, reference: Tensor, candidates: Sequence[Tensor], num_trainable: int) -> Tensor:
        """Return ‖θ_n − θ‖ in the chosen norm."""
        return distances_from(reference, candidates, num_trainable, self.norm)

    def findings(self, ids: Tensor, weights: Tensor, mixing: Tensor) -> EvaluationWeights:
        """Normalise over all candidates; averages are nobody's and have no column in P."""
        increments = affinity_increments(weights, self.affinity_update)[: len(ids)]
        has_averages = len(mixing) > len(ids)
        of_averages = min(1.0, float(mixing[len(ids) :].sum())) if has_averages else None
        return EvaluationWeights(ids, increments, mixing[: len(ids)], of_averages)

    def forget_clients(self, state: paper.State, members: Collection[ClientId]) -> paper.State:
        """Drop averages too, which may be of a single model; the next round makes new ones."""
        after = super().forget_clients(state, members)
        return after if after is state else replace(cast(State, after), averages=())
