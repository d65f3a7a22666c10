"""FedFomo on model averages (Zhang et al., ICLR 2021, appendix on additional privacy experiments).

No single model is handed out, unless only one is there. A client receives the average of a set of models, and that
average with each member left out in turn; a member whose absence raises the client's loss is a helpful one.

Departs from the paper: the appendix speaks of all N uploaded models; here the set is the client's own upload and
`num_downloads` others chosen as in FedFomo, one consistent set for every average. With as many downloads as
clients it is the paper's. Note that N · average − (N − 1) · (average without n) is θ_n itself: the averages spare
a reader nothing that arithmetic cannot undo.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.fedfomo import EvaluationWeights, KnowsAffinity, State, Upload
from fedfomo.algorithms.fedfomo_equations import leave_one_out_weights, mix, mixing_weights
from fedfomo.algorithms.fedfomo_selection import choose_downloads, exploration_rate
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Ids, Parameters
from fedfomo.core.options import Count, Fraction, NonNegative


@dataclass(frozen=True)
class Download:
    """The average of a set of models, and the averages without each of its members in turn."""

    ids: Ids
    average: Parameters | None
    averages_without: tuple[Parameters, ...]


@dataclass(frozen=True)
class Memory:
    """A client's model after its last federated update, and what it found out."""

    model: Parameters
    findings: EvaluationWeights


@register("fedfomo-averages")
@dataclass(frozen=True)
class FedFomoAverages(KnowsAffinity[Download, Memory]):
    """FedFomo that hands out averages of models (the paper's variant; single models can be computed from them)."""

    sends: ClassVar[str] = "up to M + 2 averages down, 1 model up with weights and shares of those behind them"
    compute: ClassVar[str] = "FedAvg and M + 2 passes over the validation data"

    num_downloads: Count = 5  # M
    """Other clients in the averaged set; the client's own upload joins it and is not counted."""
    epsilon: Fraction = 0.3
    """Chance of a random model in a slot, before decay."""
    epsilon_decay: NonNegative = 0.05
    """Taken off that chance in every round."""

    def start_server(self, start: FederationInfo) -> State:
        """Start without models."""
        return State.start(start.num_clients)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Average the client's own upload with others of high affinity; once whole, once without each."""
        epsilon = exploration_rate(state.round, self.epsilon, self.epsilon_decay)
        available = state.available_to(to, "last_round")
        others = choose_downloads(state.affinity.row(to), available, self.num_downloads, epsilon, rng)
        ids = [to, *others] if to in state.models else others
        members = [state.models[n] for n in ids]
        if len(members) < 2:  # nobody can be left out
            return Download(torch.empty(0, dtype=torch.int64), members[0] if members else None, ())
        average = weighted_average(members, [1.0] * len(members))
        without = [weighted_average(members, [0.0 if n == left_out else 1.0 for n in ids]) for left_out in ids]
        return Download(torch.tensor(ids, dtype=torch.int64), average, tuple(without))

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Store models and update P."""
        return state.after(uploads)

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model."""
        return Memory(start.initial, EvaluationWeights.none())

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Move from the average towards the members whose absence hurts."""
        average = download.average
        if average is None:
            return Personalised(memory.model, Memory(memory.model, EvaluationWeights.none()))
        loss_of_average, *losses = client.validation_losses((average, *download.averages_without)).tolist()
        weights = leave_one_out_weights(torch.tensor(losses, dtype=torch.float64), loss_of_average)
        members = [member_of(average, without, len(losses)) for without in download.averages_without]
        mixing = mixing_weights(weights)
        mixture = mix(average, members, mixing)
        # Recovering a member multiplies rounding errors by N, which a running variance near 0 would not survive.
        model = torch.cat((mixture[: client.num_trainable], average[client.num_trainable :]))
        shares = mixing if bool(mixing.any()) else torch.full_like(mixing, 1 / max(1, len(mixing)))
        return Personalised(model, Memory(model, EvaluationWeights(download.ids, weights, shares)))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train from the mixture."""
        own = client.train(memory.model)
        return Trained(Upload(own, memory.findings), memory, own)


def member_of(average: Tensor, average_without: Tensor, num_members: int) -> Tensor:
    """Recover the member that was left out: θ_n = N · average − (N − 1) · average without n."""
    return average.double() * num_members - average_without.double() * (num_members - 1)
