"""FedFomo+: every client trains from a common start and uses a mixture of its own, chosen by its validation data.

FedFomo's models never share a start again after the first round. Eq. 3 is a first-order expansion around a client's
own model, and the models that it compares are then far from there and hard to mix. Here every training starts from g,
the average of the last round's uploads, so each new model is one training away from g. What a client uses is another
model: the mixture u_i of the models at hand, weighted by their losses on the client's validation data. It is never
trained and never uploaded. A client may therefore have any target, and still uploads a training of its own data.

In round t, for client i and the clients S_i whose models it is sent:

    θ_i⁺ = training of g on the data of i                   (Eq. 1)
    C    = {g, θ_i⁺} ∪ {θ_n : n ∈ S_i} ∪ {θ_i, u_i}         candidates; θ_i, u_i: last training, last mixture
    q_k  ∝ exp(−β L_i(k)),  k ∈ C                           shares
    u_i  = Σ_k q_k k                                        what client i uses
    p_in ← p_in + (L_i(g) − L_i(θ_n)) / ‖θ_n − g‖           affinity: Eq. 3 with reference g
    g⁺   = Σ_i n_i θ_i⁺ / Σ_i n_i                           next start; n_i training examples
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.fedfomo import state as fedfomo
from fedfomo.algorithms.fedfomo.core import choose_downloads, exploration_rate, first_order_weights
from fedfomo.algorithms.fedfomo.state import EvaluationWeights, KeepsAffinity
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Records, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Ids, Parameters
from fedfomo.core.options import Count, Fraction, NonNegative
from fedfomo.core.vectors import distances_from, mix


def softmax_shares(losses: Tensor, beta: float) -> Tensor:
    """q_k ∝ exp(−β L_k); 0 for a loss that is not finite, and all of the first candidate if none is."""
    finite = torch.isfinite(losses)
    if not bool(finite.any()):
        return torch.eye(1, len(losses), dtype=torch.float64)[0]
    return torch.softmax(torch.where(finite, -beta * losses.double(), -torch.inf), dim=0)


@dataclass(frozen=True)
class State(fedfomo.State):
    """FedFomo's state with the models of the last round only, and the common start."""

    average: Parameters  # g


@dataclass(frozen=True)
class Download:
    """The common start, and models that other clients trained from the start before it."""

    average: Parameters
    ids: Ids
    models: tuple[Parameters, ...]  # of these clients, in their order


@dataclass(frozen=True)
class Upload:
    """A training from the common start, and what the client found out about the models that it was sent."""

    model: Parameters
    num_examples: int
    findings: EvaluationWeights


@dataclass(frozen=True)
class Memory:
    """What a client keeps between rounds."""

    own: Parameters | None  # θ_i: its last training
    mixture: Parameters | None  # u_i: what it used last
    findings: EvaluationWeights


@register("fedfomo-plus")
@dataclass(frozen=True)
class FedFomoPlus(KeepsAffinity[State, Download, Upload, Memory]):
    """Every client trains from the common average and uses the mixture of models that its validation data favour."""

    sends: ClassVar[str] = "the average and M models down, 1 up with its number of examples, weights and shares"
    compute: ClassVar[str] = "as FedAvg, once more at the end, and M + 4 passes over the validation data"
    evaluates_on: ClassVar[Records] = "validation"
    evaluated_first: ClassVar[tuple[str, ...]] = ("reference", "own")

    num_downloads: Count = 4  # M
    """Models of other clients sent to each client a round, beside the average."""
    epsilon: Fraction = 0.3
    """Probability of a random model in a slot, before decay."""
    epsilon_decay: NonNegative = 0.05
    """Subtracted from epsilon in every round."""
    beta: NonNegative = 8.0
    """How strongly a mixture prefers models of low validation loss: 0 weighs all alike."""

    def start_server(self, start: FederationInfo) -> State:
        """Start from the common initial model, with P = diag(1, …, 1)."""
        return State(**vars(fedfomo.State.start(start.num_clients)), average=start.initial)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the average and the top M of row p_i, some at random."""
        others = state.last_uploaders[state.last_uploaders != to]
        epsilon = exploration_rate(state.round, self.epsilon, self.epsilon_decay)
        ids = choose_downloads(state.affinity.dense_row(to), others, self.num_downloads, epsilon, rng)
        return Download(state.average, torch.tensor(ids, dtype=torch.int64), tuple(state.models[n] for n in ids))

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Average the uploads and update p_i ← p_i + w; without uploads, only count the round."""
        if not uploads:
            return replace(state, round=state.round + 1)
        heard = sorted(uploads)
        findings = {n: uploads[n].findings for n in heard}
        models = {n: uploads[n].model for n in heard}
        return State(
            round=state.round + 1,
            models=models,
            last_uploaders=torch.tensor(heard, dtype=torch.int64),
            affinity=state.affinity.add_rows({n: (found.ids, found.increments) for n, found in findings.items()}),
            taken=state.taken.add_rows({n: (found.ids, found.shares) for n, found in findings.items()}),
            average=weighted_average([*models.values()], [uploads[n].num_examples for n in heard]),
        )

    def validate(self, state: State, upload: Upload) -> str | None:
        """Refuse a number of examples by which nobody can be weighed, and weights that no client can have computed."""
        return "'num_examples' is below 1" if upload.num_examples < 1 else super().validate(state, upload)

    def start_client(self, start: FederationInfo) -> Memory:
        """Remember no training and no mixture."""
        return Memory(None, None, EvaluationWeights.none())

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Train from the average, evaluate all candidates, and mix them."""
        average, own = download.average, client.train(download.average)
        before = [model for model in (memory.own, memory.mixture) if model is not None]
        fresh = (own, *download.models)
        candidates = (average, *fresh, *before)
        losses = client.validation_losses(candidates)
        can_judge = len(client.data.validation) > 0
        shares = softmax_shares(losses if can_judge else torch.zeros_like(losses), self.beta)
        mixture = mix(average, candidates, shares)
        judged = slice(1, 1 + len(fresh))
        distances = distances_from(average, fresh, client.num_trainable)
        findings = EvaluationWeights(
            torch.cat((torch.tensor([client.id]), download.ids)),
            first_order_weights(float(losses[0]), losses[judged], distances),
            shares[judged],
            share_of_averages=float(1 - shares[judged].sum().clamp(max=1)),
        )
        return Personalised(mixture, Memory(own, mixture, findings))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Upload the training that was evaluated: it started from the average, and local training would repeat it."""
        own = download.average if memory.own is None else memory.own
        return Trained(Upload(own, len(client.data.train), memory.findings), memory, own)
