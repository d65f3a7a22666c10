"""DPFL, personalised learning with a graph of collaborators (Kharrat, Canini, Horváth; AISTATS 2025).

Every few rounds each client chooses, by its validation data, the set of others whose models averaged with its own
serve it best, by a randomised double greedy search; in the rounds between it averages with that set again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Records, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Ids, Parameters
from fedfomo.core.options import Count

NOBODY = torch.empty(0, dtype=torch.int64)
WORTHLESS = -1e9  # a set with a broken model; finite, since differences of rewards decide


def reward(loss: float) -> float:
    """Return R(S) = (10 − L)/10, with L the validation loss of the mean of S; the empty set is worth 0."""
    return (10 - loss) / 10 if math.isfinite(loss) else WORTHLESS


def chance_to_add(gain_of_adding: float, gain_of_dropping: float) -> float:
    """Return a⁺/(a⁺ + b⁺); 1 if neither is a gain."""
    adding, dropping = max(gain_of_adding, 0.0), max(gain_of_dropping, 0.0)
    return adding / (adding + dropping) if adding + dropping > 0 else 1.0


def double_greedy(
    candidates: Sequence[int], worth: Callable[[Sequence[int]], float], budget: int, rng: torch.Generator
) -> list[int]:
    """Choose some of the candidates: one set grows from none, another shrinks from all, until they meet.

    A candidate joins with the chance that weighs what joining adds to the small set against what leaving adds to
    the large one. Once the budget is spent, nobody else joins.
    """
    small: list[int] = []
    large = list(candidates)
    worth_of_small, worth_of_large = worth(small), worth(large)
    for candidate in candidates:
        if len(small) == budget:
            break
        grown, shrunk = [*small, candidate], [other for other in large if other != candidate]
        worth_of_grown, worth_of_shrunk = worth(grown), worth(shrunk)
        chance = chance_to_add(worth_of_grown - worth_of_small, worth_of_shrunk - worth_of_large)
        if float(torch.rand((), generator=rng, dtype=torch.float64)) < chance:
            small, worth_of_small = grown, worth_of_grown
        else:
            large, worth_of_large = shrunk, worth_of_shrunk
    return small


@dataclass(frozen=True)
class Collaborators:
    """The others whom a client averages with."""

    ids: Ids


@dataclass(frozen=True)
class State:
    """Every client's latest model, and its collaborators."""

    models: Mapping[int, Parameters]
    collaborators: Mapping[int, Collaborators]
    round: int  # rounds collected so far
    forgotten: Ids = NOBODY  # clients that have left, whom choices made before may still name


@dataclass(frozen=True)
class Download:
    """Models to choose from; or else the mean of those chosen before, and of how many it is."""

    candidates: Ids
    models: tuple[Parameters, ...]
    mean: Parameters | None
    num_in_mean: int


@dataclass(frozen=True)
class Upload:
    """A locally trained model, and the collaborators that it was mixed with before."""

    model: Parameters
    collaborators: Ids


@dataclass(frozen=True)
class Memory:
    """A client's own model, once trained; its mean with the collaborators', and who these are."""

    own: Parameters | None
    mixture: Parameters
    collaborators: Ids


@register("dpfl", paper="Kharrat et al., 2025")
@dataclass(frozen=True)
class Dpfl(Algorithm[State, Download, Upload, Memory]):
    """Every client averages with a set of others that its validation data have chosen."""

    sends: ClassVar[str] = (
        "1 model down, num_candidates in every refresh_every-th round; 1 up with its choice of collaborators"
    )
    compute: ClassVar[str] = "as FedAvg, and 2 num_candidates passes over the validation data a search"
    evaluates_on: ClassVar[Records] = "validation"

    budget: Count = 10  # B_c
    """Collaborators that a client may have."""
    num_candidates: Count = 20
    """Models that a client is sent to choose from: its collaborators', and others drawn at random."""
    refresh_every: Count = 4
    """Rounds from one choice of collaborators to the next."""

    def start_server(self, start: FederationInfo) -> State:
        """Start without models."""
        return State({}, {}, 0)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send models to choose from if it is time to choose, else the mean of the collaborators'."""
        chosen = [n for n in state.collaborators[to].ids.tolist() if n != to] if to in state.collaborators else []
        if to in state.collaborators and (state.round - 1) % self.refresh_every:
            models = [state.models[n] for n in chosen]
            mean = weighted_average(models, [1.0] * len(models)) if models else None
            return Download(NOBODY, (), mean, len(models))
        others = torch.tensor([n for n in sorted(state.models) if n != to and n not in chosen], dtype=torch.int64)
        others = others[torch.randperm(len(others), generator=rng)].tolist()
        candidates = [*chosen, *others][: self.num_candidates]
        models = tuple(state.models[n] for n in candidates)
        return Download(torch.tensor(candidates, dtype=torch.int64), models, None, 0)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Store models and choices."""
        models = {**state.models, **{n: uploads[n].model for n in sorted(uploads)}}
        chosen = {n: uploads[n].collaborators for n in sorted(uploads)}
        heard = {n: Collaborators(ids[~torch.isin(ids, state.forgotten)]) for n, ids in chosen.items()}
        return replace(state, models=models, collaborators={**state.collaborators, **heard}, round=state.round + 1)

    def forget_clients(self, state: State, members: Collection[ClientId]) -> State:
        """Drop the models and the choices of others, and them from the choices of members."""
        left = sorted(set(state.models).union(state.forgotten.tolist()).difference(members))
        forgotten = torch.tensor(left, dtype=torch.int64)
        collaborators = {
            client: Collaborators(own.ids[~torch.isin(own.ids, forgotten)])
            for client, own in state.collaborators.items()
            if client in members
        }
        models = {client: model for client, model in state.models.items() if client in members}
        return replace(state, models=models, collaborators=collaborators, forgotten=forgotten)

    def validate(self, state: State, upload: Upload) -> str | None:
        """Refuse more collaborators than are allowed, the same one twice, and those whose models nobody has."""
        chosen = upload.collaborators.tolist()
        if len(chosen) > self.budget or len(set(chosen)) < len(chosen):
            return f"'collaborators' must be at most {self.budget} different clients"
        missing = set(chosen).difference(state.models, state.forgotten.tolist())
        return f"'collaborators' names client {min(missing)}, who has no model" if missing else None

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model, without collaborators."""
        return Memory(None, start.initial, NOBODY)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Average its own model with the collaborators', chosen now or before."""
        collaborators, models, counts = memory.collaborators, list[Tensor](), list[float]()
        if download.mean is not None:
            models, counts = [download.mean], [float(download.num_in_mean)]
        elif download.models:
            chosen = self._choose(client, download.models, memory.own)
            collaborators = download.candidates[chosen]
            models, counts = [download.models[index] for index in chosen], [1.0] * len(chosen)
        if memory.own is not None:
            models, counts = [memory.own, *models], [1.0, *counts]
        mixture = weighted_average(models, counts) if models else memory.mixture
        return Personalised(mixture, Memory(memory.own, mixture, collaborators))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train from the mixture."""
        own = client.train(memory.mixture)
        return Trained(Upload(own, memory.collaborators), Memory(own, own, memory.collaborators), own)

    def _choose(self, client: Client, candidates: Sequence[Tensor], own: Tensor | None) -> list[int]:
        """Search in random order; without validation data to judge by, take as many as allowed."""
        rng = client.random("collaborators")
        order: list[int] = torch.randperm(len(candidates), generator=rng).tolist()
        if len(client.data.validation) == 0:
            return order[: self.budget]

        def worth(indices: Sequence[int]) -> float:
            members = [candidates[index] for index in indices] + ([] if own is None else [own])
            if not members:
                return 0.0
            return reward(float(client.validation_losses((weighted_average(members, [1.0] * len(members)),))))

        return double_greedy(order, worth, self.budget, rng)
