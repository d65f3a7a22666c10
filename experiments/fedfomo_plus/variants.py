"""FedFomo+ with one part changed or taken out, and the methods beside which it was looked at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from fedfomo.algorithms import make_algorithm
from fedfomo.algorithms.fedfomo import FedFomoPlus
from fedfomo.algorithms.fedfomo.core import choose_downloads, exploration_rate
from fedfomo.algorithms.fedfomo.plus import Download, Memory, State, Upload, choose_peers, softmax_shares
from fedfomo.core.algorithm import AnyAlgorithm, Personalised
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Parameters


@dataclass(frozen=True)
class WithoutPeers(FedFomoPlus):
    """Nobody is sent others' models: what others know arrives in starts alone."""

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the start alone."""
        return Download(self.start_for(state, to), torch.empty(0, dtype=torch.int64), ())


@dataclass(frozen=True)
class WithoutHistory(FedFomoPlus):
    """Candidates are of this round alone."""

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Forget the last training and the last mixture first."""
        return super().personalise(client, download, replace(memory, own=None, mixture=None))


@dataclass(frozen=True)
class UsesStart(FedFomoPlus):
    """Every client uses its start as it is: clustering by agreement without a choice on validation data."""

    def shares(self, losses: Tensor, num_examples: int) -> Tensor:
        """Take the first candidate, the start."""
        return torch.eye(1, len(losses), dtype=torch.float64)[0]


@dataclass(frozen=True)
class TakesBest(FedFomoPlus):
    """Every client uses the one best candidate."""

    beta: float = 1e9


@dataclass(frozen=True)
class LastDirection(FedFomoPlus):
    """Directions are those of the last update, not sums over rounds."""

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Forget the directions of whoever has a new one."""
        kept = {client: direction for client, direction in state.directions.items() if client not in uploads}
        return super().aggregate(replace(state, directions=kept), uploads)


@dataclass(frozen=True)
class OwnAgreesFully(FedFomoPlus):
    """A client agrees with itself as the cosine says: 1."""

    def own_agreement(self, nearest: Tensor) -> Tensor:
        """Return 1 for everybody."""
        return torch.ones_like(nearest)


@dataclass(frozen=True)
class OwnAsNearest(FedFomoPlus):
    """A client agrees with itself as its nearest other does, however little that is: version 2."""

    def own_agreement(self, nearest: Tensor) -> Tensor:
        """Return the nearest's, and 1 where none agrees."""
        return torch.where(nearest > 0, nearest, 1.0)


@dataclass(frozen=True)
class OwnAtLeastQuartile(FedFomoPlus):
    """A client agrees with itself at least by the upper quartile, small or not."""

    def own_agreement(self, nearest: Tensor) -> Tensor:
        """Return at least the upper quartile."""
        return torch.where(nearest > 0, nearest.maximum(nearest.quantile(0.75)), 1.0)


@dataclass(frozen=True)
class ExploresAtRandom(FedFomoPlus):
    """Models are chosen as FedFomo does, ε-greedily: version 2."""

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the client's start and the top M of row p_i, some at random."""
        others = state.last_uploaders[state.last_uploaders != to]
        epsilon = exploration_rate(state.round, 0.3, 0.05)
        ids = choose_downloads(state.affinity.dense_row(to), others, self.num_downloads, epsilon, rng)
        models = tuple(state.models[n] for n in ids)
        return Download(self.start_for(state, to), torch.tensor(ids, dtype=torch.int64), models)


@dataclass(frozen=True)
class Version2(OwnAsNearest, ExploresAtRandom):
    """The form before this one."""

    gamma: float = 2.0


@dataclass(frozen=True)
class SharesLater(FedFomoPlus):
    """All clients start from the average for the first rounds; agreement is measured from the first round on."""

    after: float = 0.5
    rounds: int = 20

    def start_for(self, state: State, client: ClientId) -> Tensor:
        """Return the average until then."""
        return state.average if state.round < self.after * self.rounds else super().start_for(state, client)


@dataclass(frozen=True)
class RelativeBeta(FedFomoPlus):
    """β in units of losses: q_k ∝ exp(−β L_k / unit)."""

    unit: Literal["least", "gap", "noise"] = "least"

    def shares(self, losses: Tensor, num_examples: int) -> Tensor:
        """Divide losses by the least of them, by the gap from least to median, or by 1/√examples."""
        finite = losses[torch.isfinite(losses)]
        if not num_examples or len(finite) == 0:
            return super().shares(losses, num_examples)
        units = {
            "least": finite.min(),
            "gap": finite.median() - finite.min(),
            "noise": torch.tensor(num_examples**-0.5),
        }
        return softmax_shares(losses, self.beta / max(float(units[self.unit]), 1e-9))


@dataclass(frozen=True)
class CarriedState(State):
    """The state with the last update of every client."""

    updates: Mapping[int, Parameters]  # Δ_n, whole vectors


@dataclass(frozen=True)
class CarriedModels(FedFomoPlus):
    """Whoever was not in the last round can be sent all the same: its last update, from the receiver's start."""

    def start_server(self, start: FederationInfo) -> CarriedState:
        """Start without updates."""
        return CarriedState(**vars(super().start_server(start)), updates={})

    def configure_client(self, state: CarriedState, to: ClientId, rng: torch.Generator) -> Download:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Choose among all clients ever heard of."""
        start = self.start_for(state, to)
        others = torch.tensor([n for n in sorted(state.updates) if n != to], dtype=torch.int64)
        ids = choose_peers(others, state.affinity, to, self.num_downloads, rng)
        models = tuple(state.models[n] if n in state.models else start + state.updates[n] for n in ids)
        return Download(start, torch.tensor(ids, dtype=torch.int64), models)

    def aggregate(self, state: CarriedState, uploads: Mapping[ClientId, Upload]) -> CarriedState:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keep every client's last update."""
        after = super().aggregate(state, uploads)
        if isinstance(after, CarriedState):
            return after  # nobody uploaded
        fresh = {n: model - self.start_for(state, n) for n, model in after.models.items()}
        return CarriedState(**vars(after), updates={**state.updates, **fresh})


SHIPPED = "FedFomo+"
VARIANTS: Mapping[str, AnyAlgorithm] = {
    SHIPPED: FedFomoPlus(),
    "one start for all": FedFomoPlus(sharing="all"),
    "one start for all until half of the rounds": SharesLater(),
    "γ = 1": FedFomoPlus(gamma=1.0),
    "γ = 2": FedFomoPlus(gamma=2.0),
    "γ = 4": FedFomoPlus(gamma=4.0),
    "own agreement: 1": OwnAgreesFully(),
    "own agreement: the nearest other's": OwnAsNearest(),
    "own agreement: at least a": OwnAtLeastQuartile(),
    "ε-greedy choice of models": ExploresAtRandom(),
    "version 2": Version2(),
    "last directions alone": LastDirection(),
    "no bound on lengths": FedFomoPlus(longest=1e9),
    "no others' models": WithoutPeers(),
    "no history": WithoutHistory(),
    "no mixture: the start is used": UsesStart(),
    "no mixture: the best candidate": TakesBest(),
    "others' last updates carried over": CarriedModels(),
    "β = 4": FedFomoPlus(beta=4.0),
    "β = 16": FedFomoPlus(beta=16.0),
    "β = 32": FedFomoPlus(beta=32.0),
    "β = 8 / least loss": RelativeBeta(beta=8.0, unit="least"),
    "β = 16 / least loss": RelativeBeta(beta=16.0, unit="least"),
    "β = 2 / gap": RelativeBeta(beta=2.0, unit="gap"),
    "β = √examples": RelativeBeta(beta=1.0, unit="noise"),
}
"""What was tried, by its name on the page."""
BESIDE: Mapping[str, AnyAlgorithm] = {
    "FedFomo": make_algorithm("fedfomo"),
    "FedAvg + fine-tuning": make_algorithm("fedavg-finetuned"),
    "Clustered FL (CFL)": make_algorithm("cfl", {"separation": 0.0}),
    "oracle clusters": make_algorithm("oracle"),
    "Local Training": make_algorithm("local"),
}
