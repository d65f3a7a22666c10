"""FedFomo (Zhang, Sapra, Fidler, Yeung, Alvarez; ICLR 2021): the paper's method and nothing else, in its order.

The server stores every client's model separately. In each round it sends client i the M uploaded models with the
highest affinity p_ij. The client evaluates them on its validation data, weighs them by Eq. 3, moves its model towards
those that help, trains locally, and uploads the model and the weights, which the server adds to P.

θ_i^{t-1} is the client's model after its last federated update ("reference"), θ_n^t are the models after the local
training that followed: the client's own and the downloads ("candidates"). L_i is the loss on the validation data of
client i. They are distributed like its target, which may differ from its training data (Section 3.1).

Eq. 1 is SGD on a client: `train`. Eq. 2 is the ideal update, which no code computes; Eq. 3 approximates its weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedfomo.state import Download, EvaluationWeights, KeepsAffinity, Memory, State, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Records, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.options import Count, Fraction, NonNegative
from fedfomo.core.vectors import distances_from, first_of_largest, mix, without

TINY_DISTANCE = 1e-12  # closer models are the same model: their loss difference is rounding error, not improvement


# --- Section 3.1, Eq. 3: how much each model helps the client ---


def first_order_weights(reference_loss: float, losses: Tensor, distances: Tensor) -> Tensor:
    """Eq. 3: w_n = (L_i(θ_i^{t-1}) − L_i(θ_n^t)) / ‖θ_n^t − θ_i^{t-1}‖, signed; 0 where that is not a number."""
    weights = (reference_loss - losses.double()) / distances.double()
    usable = torch.isfinite(weights) & torch.isfinite(distances) & (distances > TINY_DISTANCE)
    return torch.where(usable, weights, 0.0)


def mixing_weights(weights: Tensor) -> Tensor:
    """Below Eq. 3, clip and normalise: w*_n = max(w_n, 0) / Σ max(w_n, 0); all 0 (no move) if no weight is positive."""
    positive = torch.where(torch.isfinite(weights), weights, 0.0).clamp(min=0.0)
    if not bool((positive > 0).any()):
        return torch.zeros_like(positive)
    scaled = positive / positive.max()  # a sum of huge weights would overflow
    return scaled / scaled.sum()


def weigh(reference_loss: float, losses: Tensor, distances: Tensor, has_validation: bool) -> tuple[Tensor, Tensor]:
    """Return w (Eq. 3) and w* (clipped and normalised) of the candidates."""
    weights = first_order_weights(reference_loss, losses, distances)
    if has_validation:
        return weights, mixing_weights(weights)
    # Departs from the paper, which has no client without validation data: it weighs all models alike.
    return weights, mixing_weights((torch.isfinite(distances) & (distances > TINY_DISTANCE)).double())


# --- Section 3.1, communication and bandwidth: the top M of the affinity matrix P, with ε-greedy exploration ---


def exploration_rate(round: int, epsilon: float, decay: float) -> float:
    """ε in round t: 0.3 with 0.05 decay each round (appendix); t is 1 at the first update that has models to send."""
    return max(0.0, epsilon - decay * round)


def choose_downloads(p: Tensor, available: Tensor, num: int, epsilon: float, rng: torch.Generator) -> list[int]:
    """Return the `num` available clients of highest p_i; each slot holds a random one instead with probability ε."""
    shuffled, ties = (torch.randperm(len(available), generator=rng) for _ in range(2))
    explore = torch.rand(min(num, len(available)), generator=rng, dtype=torch.float64) < epsilon
    ranked = first_of_largest(p[available], 2 * num, ties)  # equal ones in random order
    orders = available[ranked].tolist(), available[shuffled[: 2 * num]].tolist()
    chosen: list[int] = []
    for exploring in explore.tolist():
        chosen.append(next(n for n in orders[exploring] if n not in chosen))
    return chosen


# --- The method ---


@register("fedfomo", paper="Zhang et al., ICLR 2021")
@dataclass(frozen=True)
class FedFomo(KeepsAffinity[State, Download, Upload, Memory]):
    """Every client moves towards the models that lower its validation loss, by first-order weights."""

    sends: ClassVar[str] = "M models down, 1 up with weights and shares of those that it was sent"
    compute: ClassVar[str] = "as FedAvg, and M + 2 passes over the validation data"
    evaluates_on: ClassVar[Records] = "validation"
    evaluated_first: ClassVar[tuple[str, ...]] = ("reference", "own")

    num_downloads: Count = 5  # M
    """Models of other clients sent to each client a round; its own is always a candidate and not counted."""
    epsilon: Fraction = 0.3
    """Probability of a random model in a slot, before decay."""
    epsilon_decay: NonNegative = 0.05
    """Subtracted from epsilon in every round."""

    def start_server(self, start: FederationInfo) -> State:
        """Start without models, and with P = diag(1, …, 1)."""
        return State.start(start.num_clients)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the top M of row p_i, some at random."""
        p = state.affinity.dense_row(to)
        available = self.available(state, to, rng)
        ids = choose_downloads(p, available, self.num_downloads, self.exploration(state.round), rng)
        return Download(torch.tensor(ids, dtype=torch.int64), tuple(state.models[n] for n in ids))

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Store the models, and update p_i ← p_i + w with the signed w; without uploads, only count the round."""
        if not uploads:
            return replace(state, round=state.round + 1)
        findings = {client: upload.findings for client, upload in uploads.items()}
        return replace(
            state,
            round=state.round + 1,
            models={**state.models, **{client: upload.model for client, upload in uploads.items()}},
            last_uploaders=torch.tensor(sorted(uploads), dtype=torch.int64),
            affinity=state.affinity.add_rows({n: (found.ids, found.increments) for n, found in findings.items()}),
            taken=state.taken.add_rows({n: (found.ids, found.shares) for n, found in findings.items()}),
        )

    def start_client(self, start: FederationInfo) -> Memory:
        """Take the common initial model as reference and as own model; the paper names no other start."""
        return Memory(start.initial, start.initial, EvaluationWeights.none())

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Evaluate own model and downloads on the validation data, weigh them, and move the reference."""
        reference, candidates = memory.reference, (memory.own, *download.models)
        losses = client.validation_losses((reference, *candidates))
        distances = self.distances(reference, candidates, client.num_trainable)
        w, w_star = weigh(float(losses[0]), losses[1:], distances, has_validation=len(client.data.validation) > 0)
        w_star = self.accept(client, memory, candidates, losses, w_star)
        model = mix(reference, candidates, w_star)  # θ_i^t ← θ_i^{t-1} + Σ_n w*_n (θ_n^t − θ_i^{t-1})
        ids = torch.cat((torch.tensor([client.id]), download.ids))
        return Personalised(model, Memory(model, memory.own, self.findings(ids, w, w_star)))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train for E epochs by SGD (Eq. 1) from the mixed model, which is the next reference."""
        own = client.train(memory.reference)
        return Trained(Upload(own, memory.findings), replace(memory, own=own), own)

    # Hooks: what variants override. Here they are as in the paper, and change nothing above.
    def available(self, state: State, to: ClientId, rng: torch.Generator) -> Tensor:
        """Return whose models can be sent to a client, in ascending order: those of the last round but its own."""
        return without(state.last_uploaders, to)

    def distances(self, reference: Tensor, candidates: Sequence[Tensor], num_trainable: int) -> Tensor:
        """Return ‖θ_n − θ‖: L2 over the whole vector of trainable coordinates."""
        return distances_from(reference, candidates, num_trainable)

    def accept(
        self, client: Client, memory: Memory, candidates: Sequence[Tensor], losses: Tensor, mixing: Tensor
    ) -> Tensor:
        """Return the w* to use, here as they are; `losses` are those of the reference and of the candidates."""
        return mixing

    def findings(self, ids: Tensor, weights: Tensor, mixing: Tensor) -> EvaluationWeights:
        """Return what is uploaded: w, added to P as it is, and w*."""
        return EvaluationWeights(ids, weights, mixing)

    def exploration(self, round: int) -> float:
        """Return ε in a round."""
        return exploration_rate(round, self.epsilon, self.epsilon_decay)
