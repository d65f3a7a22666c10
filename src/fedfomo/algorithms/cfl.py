"""Clustered federated learning, CFL (Sattler, Müller, Samek; 2020).

Start with everybody in one cluster and run FedAvg. Once a cluster's average hardly moves although its members
still want to move, they want to go different ways: the cluster is split in two by the directions of their updates,
and each half goes on alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from msgspec import Meta
from torch import Tensor

from fedfomo.algorithms.clustering import Clusters, cosines, groups_after, merge_nearest
from fedfomo.algorithms.fedavg import FedAvgClient, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Records
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Coordinates, Ids, Parameters
from fedfomo.core.options import Fraction, NonNegative, Positive


def update_norms(updates: Sequence[Tensor]) -> tuple[float, float]:
    """Return ‖(1/|c|) Σ Δ_i‖ and max ‖Δ_i‖, in float64."""
    mean = torch.zeros(updates[0].shape, dtype=torch.float64)
    largest = 0.0
    for update in updates:
        mean.add_(update.double(), alpha=1 / len(updates))
        largest = max(largest, float(update.double().norm()))
    return float(mean.norm()), largest


def bipartition(similarities: Tensor, linkage: str) -> list[int]:
    """Split in two by a_ij = cos(Δ_i, Δ_j): the most similar are merged until two groups are left.

    With single linkage this minimises the largest similarity across the cut.
    """
    above = torch.triu_indices(len(similarities), len(similarities), offset=1)
    merges = merge_nearest((1 - similarities[above[0], above[1]]).clamp(min=0), linkage)
    return groups_after(merges, len(similarities) - 2)


def separation_of(similarities: Tensor, halves: Sequence[int]) -> float:
    """Return by how much members of one half are more alike than members of different halves, on average."""
    half = torch.tensor(halves)
    is_within = half[:, None] == half
    is_pair = ~torch.eye(len(half), dtype=torch.bool)
    return float(similarities[is_within & is_pair].mean() - similarities[~is_within].mean())


@dataclass(frozen=True)
class State:
    """The clusters, what is known of their members, and what they were split from."""

    clusters: Clusters
    updates: Mapping[int, Coordinates]  # Δ_i: every client's latest
    first_norm: float  # ‖mean Δ‖ of the first round that anybody answered
    ancestors: tuple[Parameters, ...]  # models of clusters at the time of their split
    num_trainable: int
    round: int  # rounds collected so far
    planned_rounds: int
    awaited: Ids  # who was there from the start


@dataclass(frozen=True)
class Download:
    """The model of the client's cluster, and of all other clusters and their ancestors if it may choose."""

    model: Parameters
    others: tuple[Parameters, ...]


@register("cfl", paper="Sattler et al., 2020")
@dataclass(frozen=True)
class Cfl(FedAvgClient[State, Download]):
    """Clusters that split where members' updates disagree; FedAvg inside each."""

    evaluates_on: ClassVar[Records] = "validation"  # with select_by_validation

    thresholds: Literal["relative", "absolute"] = "relative"
    """Compare norms with the first round's and with each other, or with the numbers themselves."""
    epsilon_1: NonNegative = 0.8
    """Split only if the mean update's norm is below this: absolute, or times its norm in the first round."""
    epsilon_2: Positive = 2.2
    """Split only if the largest norm is above this: absolute, or such that mean/largest < epsilon_1/epsilon_2."""
    first_split: Fraction = 0.25
    """Share of the planned rounds before anything is split."""
    wait: Fraction = 0.5
    """Share of the planned rounds in which a cluster waits for members that have not answered yet."""
    linkage: Literal["single", "complete"] = "single"
    """How a cluster is split: single as in the paper, complete as in the authors' code."""
    separation: Annotated[float, Meta(ge=0, le=2)] = 0.0
    """Split only if cosines within the halves exceed those across by so much on average; 0 asks for nothing more."""
    select_by_validation: bool = False
    """Let each client use the model, of all present and former clusters, with the lowest validation loss."""

    def start_server(self, start: FederationInfo) -> State:
        """Start with one cluster."""
        awaited = torch.tensor(start.members, dtype=torch.int64)
        return State(Clusters.start(start), {}, 0.0, (), start.layout.num_trainable, 0, start.rounds, awaited)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the model of the client's cluster, and the others if it may choose."""
        own = int(state.clusters.of_client[to])
        others = (*state.clusters.models[:own], *state.clusters.models[own + 1 :], *state.ancestors)
        return Download(state.clusters.models[own], others if self.select_by_validation else ())

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Split the clusters that disagree, then average inside each."""
        fresh = state.clusters.updates(uploads, state.num_trainable)
        updates = {**state.updates, **fresh}
        first_norm = state.first_norm or (update_norms(list(fresh.values()))[0] if fresh else 0.0)
        of_client = state.clusters.of_client.clone()
        models, ancestors = list(state.clusters.models), list(state.ancestors)
        for cluster, model in enumerate(state.clusters.models):
            leaving = self._leaving(state, state.clusters.members(cluster), updates, first_norm)
            if leaving:
                of_client[leaving] = len(models)
                models.append(model)
                ancestors.append(model)
                # The halves part from here on: what moved members before says nothing about what moves them now.
                updates = {n: update for n, update in updates.items() if int(state.clusters.of_client[n]) != cluster}
        clusters = Clusters(tuple(models), of_client).averaged(uploads)
        return replace(
            state,
            clusters=clusters,
            updates=updates,
            first_norm=first_norm,
            ancestors=tuple(ancestors),
            round=state.round + 1,
        )

    def forget_clients(self, state: State, members: Collection[ClientId]) -> State:
        """Drop the updates of others, and do not wait for them."""
        updates = {client: update for client, update in state.updates.items() if client in members}
        awaited = [client for client in state.awaited.tolist() if client in members]
        return replace(state, updates=updates, awaited=state.awaited.new_tensor(awaited))

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Use the cluster's model, or the best on validation of all."""
        if not download.others:
            return Personalised(download.model, None)
        candidates = (download.model, *download.others)
        losses = client.validation_losses(candidates).nan_to_num(nan=math.inf)
        return Personalised(candidates[int(losses.argmin())], None)  # the first, its own cluster's, if nothing is known

    def _leaving(
        self, state: State, members: Sequence[ClientId], updates: Mapping[ClientId, Tensor], first_norm: float
    ) -> list[ClientId]:
        """Return the members that leave a cluster for a new one; none if it is not split."""
        known = [n for n in members if n in updates]
        missing = set(state.awaited.tolist()).intersection(members).difference(known)
        done = (state.round + 1) / state.planned_rounds
        # Departs from the paper, where everybody answers: a client that never answers does not delay a split for ever.
        if len(known) <= 2 or done <= self.first_split or (missing and done <= self.wait):
            return []
        of_members = [updates[n] for n in known]
        if not self._disagree(*update_norms(of_members), first_norm):
            return []
        # Departs from the paper: its condition also holds for equals that have converged, whom noise alone would part.
        similarities = cosines(of_members)
        halves = bipartition(similarities, self.linkage)
        if self.separation and separation_of(similarities, halves) < self.separation:
            return []
        smaller = 1 if 2 * sum(halves) <= len(halves) else 0
        return [n for n, half in zip(known, halves, strict=True) if half == smaller]

    def _disagree(self, mean_norm: float, largest_norm: float, first_norm: float) -> bool:
        """Tell whether a cluster hardly moves while a member wants to: ‖mean Δ‖ < ε₁ and max ‖Δ_i‖ > ε₂."""
        if self.thresholds == "absolute":
            return mean_norm < self.epsilon_1 and largest_norm > self.epsilon_2
        return mean_norm < self.epsilon_1 * first_norm and mean_norm * self.epsilon_2 < self.epsilon_1 * largest_norm
