"""FedFomo on model averages (Zhang et al., ICLR 2021, appendix on additional privacy experiments).

No single model is handed out, unless only one is there. A client receives the average of a set of models, and that
average with each member left out in turn; a member whose absence raises the client's loss is a helpful one.

Departs from the paper: the appendix speaks of all N uploaded models; here the set is the client's own upload and
`num_downloads` others chosen as in FedFomo, one consistent set for every average. With as many downloads as
clients it is the paper's. Note that N · average − (N − 1) · (average without n) is θ_n itself: the averages spare
a reader nothing that arithmetic cannot undo.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.fedfomo.core import FedFomo, choose_downloads, mixing_weights
from fedfomo.algorithms.fedfomo.state import Download, EvaluationWeights, Memory, State
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised
from fedfomo.core.client import Client, ClientId
from fedfomo.core.vectors import mix


def leave_one_out_weights(losses_without: Tensor, loss_of_average: float) -> Tensor:
    """Appendix, model averages: w_n ∝ L_i(average without θ_n) − L_i(average of all); the sign is Eq. 3's reversed."""
    weights = losses_without.double() - loss_of_average
    return torch.where(torch.isfinite(weights), weights, 0.0)


def member_of(average: Tensor, average_without: Tensor, num_members: int) -> Tensor:
    """Recover the member that was left out: θ_n = N · average − (N − 1) · average without n."""
    return average.double() * num_members - average_without.double() * (num_members - 1)


@register("fedfomo-averages", paper="Zhang et al., ICLR 2021, appendix")
@dataclass(frozen=True)
class FedFomoAverages(FedFomo):
    """FedFomo that hands out averages of models (the paper's variant; single models can be computed from them)."""

    sends: ClassVar[str] = "up to M + 2 averages down, 1 model up with weights and shares of those behind them"
    compute: ClassVar[str] = "FedAvg and M + 2 passes over the validation data"
    evaluated_first: ClassVar[tuple[str, ...]] = ()

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Average the client's own upload with others of high affinity: first all, then all but each in turn."""
        available, p = self.available(state, to, rng), state.affinity.dense_row(to)
        others = choose_downloads(p, available, self.num_downloads, self.exploration(state.round), rng)
        ids = [to, *others] if to in state.models else others
        members = [state.models[n] for n in ids]
        if len(members) < 2:  # nobody can be left out
            return Download(torch.empty(0, dtype=torch.int64), tuple(members))
        average = weighted_average(members, [1.0] * len(members))
        without = (weighted_average(members, [0.0 if n == left_out else 1.0 for n in ids]) for left_out in ids)
        return Download(torch.tensor(ids, dtype=torch.int64), (average, *without))

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Move from the average towards the members whose absence hurts."""
        if not download.models:
            return Personalised(memory.reference, replace(memory, findings=EvaluationWeights.none()))
        average, *averages_without = download.models
        loss_of_average, *losses = client.validation_losses(download.models).tolist()
        weights = leave_one_out_weights(torch.tensor(losses, dtype=torch.float64), loss_of_average)
        members = [member_of(average, without, len(losses)) for without in averages_without]
        mixing = mixing_weights(weights)
        mixture = mix(average, members, mixing)
        # Recovering a member multiplies rounding errors by N, which a running variance near 0 would not survive.
        model = torch.cat((mixture[: client.num_trainable], average[client.num_trainable :]))
        shares = mixing if bool(mixing.any()) else torch.full_like(mixing, 1 / max(1, len(mixing)))
        return Personalised(model, Memory(model, memory.own, EvaluationWeights(download.ids, weights, shares)))
