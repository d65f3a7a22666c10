"""FL+HC, federated learning with hierarchical clustering of updates (Briggs, Fan, Andras; 2020).

Run FedAvg for some rounds; then let everybody train the global model once more, cluster the clients, once and for
all, by how they changed it, and go on with FedAvg inside each cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from fedfomo.algorithms.clustering import Clusters, groups_after, merge_nearest
from fedfomo.algorithms.fedavg import Download, FedAvgClient, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.client import ClientId, FederationInfo
from fedfomo.core.messages import Coordinates, Ids
from fedfomo.core.options import CountOrZero, Fraction, NonNegative
from fedfomo.errors import require


def update_distances(updates: Sequence[Tensor], metric: str) -> Tensor:
    """Return the distances of updates 0–1, 0–2, …, 1–2, …, in units of the mean length of an update.

    They are Manhattan or Euclidean, or for `cosine` Euclidean between directions, √(2 − 2 cos).
    """
    matrix = torch.stack(list(updates)).double()
    if metric == "cosine":
        matrix = torch.nn.functional.normalize(matrix, dim=1)
    order = 1.0 if metric == "l1" else 2.0
    unit = float(torch.linalg.vector_norm(matrix, ord=order, dim=1).mean())
    return torch.pdist(matrix, p=order) / (unit or 1.0)


def widest_gap(heights: Sequence[float]) -> int:
    """Return how many merges lie below the widest gap between successive heights."""
    gaps = [above - below for below, above in pairwise(heights)]
    return 1 + gaps.index(max(gaps)) if gaps else len(heights)


@dataclass(frozen=True)
class State:
    """The clusters, and until there are several, every client's latest update."""

    clusters: Clusters
    is_clustered: bool
    updates: Mapping[int, Coordinates]  # Δ_i
    num_trainable: int
    round: int  # rounds collected so far
    planned_rounds: int
    awaited: Ids  # who was there from the start


@register("fl-hc", paper="Briggs et al., 2020")
@dataclass(frozen=True)
class FlHc(FedAvgClient[State, Download]):
    """Cluster the clients once, by their updates to a global model; FedAvg inside each cluster."""

    warm_up: Fraction = 0.2
    """Share of the planned rounds of plain FedAvg before the round that clusters; at least one is run."""
    metric: Literal["l1", "l2", "cosine"] = "l1"
    """Distance between updates."""
    linkage: Literal["average", "complete", "single", "ward"] = "average"
    """Distance between clusters; ward needs the metric l2 or cosine."""
    cut: Literal["threshold", "gap"] = "threshold"
    """Stop merging at a threshold, or at the widest gap between successive merges."""
    threshold: NonNegative = 1.0
    """Clusters farther apart than this stay apart, in units of the mean length of an update."""
    num_clusters: CountOrZero = 0
    """Stop merging at this many clusters instead; 0 leaves it to the cut."""
    wait: Fraction = 0.5
    """Share of the planned rounds in which clustering waits for clients that have not answered yet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.linkage != "ward" or self.metric != "l1", "linkage ward needs the metric l2 or cosine, not l1")

    def start_server(self, start: FederationInfo) -> State:
        """Start with one cluster."""
        awaited = torch.tensor(start.members, dtype=torch.int64)
        return State(Clusters.start(start), False, {}, start.layout.num_trainable, 0, start.rounds, awaited)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the model of the client's cluster."""
        return Download(state.clusters.model_for(to))

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Cluster the clients if it is time to, then average inside each cluster."""
        clusters, updates = state.clusters, dict(state.updates)
        if not state.is_clustered:
            updates |= clusters.updates(uploads, state.num_trainable)
        is_time = not state.is_clustered and self._is_time(state, updates.keys())
        if is_time:
            clusters, updates = self._clustered(clusters, updates), {}
        return replace(
            state,
            clusters=clusters.averaged(uploads),
            is_clustered=state.is_clustered or is_time,
            updates=updates,
            round=state.round + 1,
        )

    def forget_clients(self, state: State, members: Collection[ClientId]) -> State:
        """Drop the updates of others, and do not wait for them."""
        updates = {client: update for client, update in state.updates.items() if client in members}
        awaited = [client for client in state.awaited.tolist() if client in members]
        return replace(state, updates=updates, awaited=state.awaited.new_tensor(awaited))

    def _is_time(self, state: State, known: Set[ClientId]) -> bool:
        """Tell whether this round clusters: the warm-up is over, and all clients have answered or the wait is over."""
        if state.round < max(1, round(self.warm_up * state.planned_rounds)):
            return False
        # Departs from the paper, where all clients take part in this round: an absent client counts by its latest
        # update, and a client that never answers is not awaited endlessly.
        is_patient = state.round + 1 <= self.wait * state.planned_rounds
        return bool(known) and (known >= set(state.awaited.tolist()) or not is_patient)

    def _clustered(self, clusters: Clusters, updates: Mapping[ClientId, Tensor]) -> Clusters:
        """Give every group of clients a copy of the global model; the largest one takes those that never answered."""
        known = sorted(updates)
        merges = merge_nearest(update_distances([updates[n] for n in known], self.metric), self.linkage)
        groups = groups_after(merges, self._num_merges([height for _, _, height in merges]))
        of_client = torch.full_like(clusters.of_client, max(groups, key=groups.count))
        of_client[known] = torch.tensor(groups)
        return Clusters(clusters.models * (1 + max(groups)), of_client)

    def _num_merges(self, heights: Sequence[float]) -> int:
        if self.num_clusters:
            return max(0, len(heights) + 1 - self.num_clusters)
        if self.cut == "gap":
            return widest_gap(heights)
        return sum(height <= self.threshold for height in heights)
