"""FedFomo+: clients whose trainings agree share a start, and each uses a mixture that its validation data choose.

FedFomo's models never share a start again after the first round. Eq. 3 is a first-order expansion around a client's
own model, and the models that it compares are then far from there and hard to mix. Here clients whose updates point
the same way start from (nearly) the same g, the average of their last models, so that models of theirs differ by
single trainings. What a client uses is another model: the mixture u_i of the models at hand, weighted by their losses
on the client's validation data. It is never trained and never uploaded. Starts follow training data, mixtures the
target: a client may have any target, and still uploads a training of its own data.

In round t, for client i, which is sent its start g_i and the models of the clients S_i:

    θ_i⁺ = training of g_i on the data of i                 (Eq. 1)
    C    = {g_i, θ_i⁺} ∪ {θ_n : n ∈ S_i} ∪ {θ_i, u_i}       candidates; θ_i, u_i: last training, last mixture
    q_k  ∝ exp(−β L_i(k)),  k ∈ C                           shares
    u_i  = Σ_k q_k k                                        what client i uses
    p_in ← p_in + (L_i(g_i) − L_i(θ_n)) / ‖θ_n − g_i‖       affinity: Eq. 3 with reference g_i

and on the server, of the uploads, with updates Δ_n = θ_n⁺ − g_n, the median m of their lengths, and N_n training
examples, of which at most ten medians count:

    c_n  = min(1, b m/‖Δ_n‖)                                below 1 for an update longer than b medians
    θ_n  = g_n + c_n Δ_n                                    which is shortened to that
    d_n  ← d_n + Δ_n/‖Δ_n‖                                  where the trainings of n have led
    s_in = c_n max(0, cos(d_i, d_n))                        agreement of i with another client n
    s_ii = max(max_{n≠i} s_in, a min(1, 2a))                with itself; a: upper quartile of all max_{n≠i} s_in
    g_i⁺ = Σ_n N_n s_in^γ θ_n / Σ_n N_n s_in^γ              next start

S_i are M clients of the last round: one that i has never evaluated, while there is one, and those of highest p_in.

Version 3. Version 2 had no a, so that a client whom nobody resembles gave half of its start to whoever was nearest, a
liar perhaps; its S_i were FedFomo's, ε-greedy, and might never meet the one client that helps. Version 1 had one start
for all, the average; `sharing = "all"` is that, but for the bound on lengths and for S_i.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.fedfomo import state as fedfomo
from fedfomo.algorithms.fedfomo.core import first_order_weights
from fedfomo.algorithms.fedfomo.state import EvaluationWeights, KeepsAffinity
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Records, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Coordinates, Ids, Parameters
from fedfomo.core.options import Count, NonNegative, Positive
from fedfomo.core.sparse import SparseMatrix
from fedfomo.core.vectors import distances_from, first_of_largest, mix


def softmax_shares(losses: Tensor, beta: float) -> Tensor:
    """q_k ∝ exp(−β L_k); 0 for a loss that is not finite, and all of the first candidate if none is."""
    finite = torch.isfinite(losses)
    if not bool(finite.any()):
        return torch.eye(1, len(losses), dtype=torch.float64)[0]
    return torch.softmax(torch.where(finite, -beta * losses.double(), -torch.inf), dim=0)


MOST_EXAMPLES = 10.0
"""Medians of a round's numbers of training examples that one client counts for: the number is the client's own word."""


def counted(examples: Tensor) -> Tensor:
    """N_n, of which at most ten medians count."""
    return examples.clamp(max=MOST_EXAMPLES * float(examples.quantile(0.5)))


def shortening(lengths: Tensor, bound: float) -> Tensor:
    """c_n = min(1, b m/‖Δ_n‖), with m the median of ‖Δ‖ over the clients that have moved; 1 for one that has not."""
    moved = lengths[lengths > 0]
    return (bound * moved.quantile(0.5) / lengths).clamp(max=1) if len(moved) else torch.ones_like(lengths)


def shortened(start: Tensor, model: Tensor, factor: float, of_buffers: float, num_trainable: int) -> Tensor:
    """Return g + c Δ, in float64 in between, with a factor of their own for buffers; the model itself where both are 1.

    Buffers, such as running statistics, lie behind the trainable coordinates.
    """
    if factor == of_buffers == 1:
        return model
    factors = torch.full((len(model),), of_buffers, dtype=torch.float64)
    factors[:num_trainable] = factor
    return start.double().lerp(model.double(), factors).float()


def unit(update: Tensor) -> Tensor:
    """Δ/‖Δ‖, in float64; 0 for no update."""
    return torch.nn.functional.normalize(update.double(), dim=0)


def agreement(direction: Tensor, others: Tensor, factors: Tensor) -> Tensor:
    """s_in = c_n max(0, cos(d_i, d_n)), of unit vectors."""
    return (others * direction).sum(dim=1).clamp(min=0) * factors


def own_agreement(nearest: Tensor) -> Tensor:
    """s_ii, of every client's nearest other: at least what is usual, where that is clear; 1 if none agrees."""
    usual = nearest.quantile(0.75)  # a: few clients without a like cannot lower it, few copies cannot raise it
    own = nearest.maximum(usual * (2 * usual).clamp(max=1))  # below ½ cosines are mostly noise
    return torch.where(nearest > 0, own, 1.0)


def choose_peers(others: Tensor, affinity: SparseMatrix, to: ClientId, num: int, rng: torch.Generator) -> list[int]:
    """Return one of the others that a client has never evaluated, and those of highest p_i.

    A client that was never evaluated has no entry in row p_i, and affinity 0. Equal ones come in random order.
    """
    others = others[torch.randperm(len(others), generator=rng)]
    evaluated, _ = affinity.row(to)
    new = others[~torch.isin(others, evaluated)][:1]
    rest = others[~torch.isin(others, new)]
    best = rest[first_of_largest(affinity.dense_row(to)[rest], num)]
    return [*new.tolist(), *best.tolist()][:num]


@dataclass(frozen=True)
class State(fedfomo.State):
    """FedFomo's state with the models of the last round only, long updates shortened, and what starts are made of."""

    average: Parameters  # Σ N_n θ_n / Σ N_n: the start of clients that nothing is known of
    directions: Mapping[int, Coordinates]  # d_n: every client's
    pull: SparseMatrix  # N_n s_in^γ: every known client × the last uploaders
    num_trainable: int


@dataclass(frozen=True)
class Download:
    """The client's start, and models that other clients trained in the last round."""

    start: Parameters
    ids: Ids
    models: tuple[Parameters, ...]  # of these clients, in their order


@dataclass(frozen=True)
class Upload:
    """A training from the client's start, and what it found out about the models that it was sent."""

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
    """Clients whose trainings agree share a start; each uses the mixture that its validation data favour."""

    sends: ClassVar[str] = "a start and M models down, 1 up with its number of examples, weights and shares"
    compute: ClassVar[str] = "as FedAvg, once more at the end, and M + 4 passes over the validation data"
    evaluates_on: ClassVar[Records] = "validation"
    evaluated_first: ClassVar[tuple[str, ...]] = ("reference", "own")

    num_downloads: Count = 4  # M
    """Models of other clients sent to each client a round, beside its start."""
    beta: NonNegative = 8.0
    """How strongly a mixture prefers models of low validation loss: 0 weighs all alike."""
    sharing: Literal["agreement", "all"] = "agreement"
    """Who shares a start: clients as far as their trainings agree, or all clients alike."""
    gamma: Positive = 3.0
    """How strongly a start prefers the models of clients whose trainings agree."""
    longest: Positive = 2.0
    """Longest update that is taken as it is, in medians of a round's; a longer one is shortened and counts less."""

    def start_server(self, start: FederationInfo) -> State:
        """Start from the common initial model, with P = diag(1, …, 1)."""
        return State(
            **vars(fedfomo.State.start(start.num_clients)),
            average=start.initial,
            directions={},
            pull=SparseMatrix.zeros(start.num_clients),
            num_trainable=start.layout.num_trainable,
        )

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the client's start, a model of somebody whom it has never evaluated, and those of highest p_i."""
        others = state.last_uploaders[state.last_uploaders != to]
        ids = choose_peers(others, state.affinity, to, self.num_downloads, rng)
        models = tuple(state.models[n] for n in ids)
        return Download(self.start_for(state, to), torch.tensor(ids, dtype=torch.int64), models)

    def start_for(self, state: State, client: ClientId) -> Tensor:
        """g_i = Σ N_n s_in^γ θ_n / Σ N_n s_in^γ; the average for a client without a direction, or that has no weights.

        A client of the last round always has weights: if nobody agrees with it, its own model has all of them.
        """
        uploaders, pull = state.pull.row(client)
        used = [
            (state.models[n], w) for n, w in zip(uploaders.tolist(), pull.tolist(), strict=True) if n in state.models
        ]
        return weighted_average([model for model, _ in used], [w for _, w in used]) if used else state.average

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Shorten long updates, follow directions, and update p_i ← p_i + w; without uploads, only count the round."""
        if not uploads:
            return replace(state, round=state.round + 1)
        heard = sorted(uploads)
        starts = {n: self.start_for(state, n) for n in heard}
        changes = {n: uploads[n].model.double() - starts[n].double() for n in heard}
        updates = {n: change[: state.num_trainable] for n, change in changes.items()}
        of_buffers = torch.stack([change[state.num_trainable :].norm() for change in changes.values()])
        factors = shortening(torch.stack([update.norm() for update in updates.values()]), self.longest)
        both = zip(factors.tolist(), shortening(of_buffers, self.longest).tolist(), strict=True)
        models = {
            n: shortened(starts[n], uploads[n].model, *pair, state.num_trainable)
            for n, pair in zip(heard, both, strict=True)
        }
        directions = {**state.directions}
        for n, update in updates.items():
            directions[n] = (unit(update) + directions.get(n, torch.zeros(()))).float()
        findings = {n: uploads[n].findings for n in heard}
        examples = counted(torch.tensor([uploads[n].num_examples for n in heard], dtype=torch.float64))
        return State(
            round=state.round + 1,
            models=models,
            last_uploaders=torch.tensor(heard, dtype=torch.int64),
            affinity=state.affinity.add_rows({n: (found.ids, found.increments) for n, found in findings.items()}),
            taken=state.taken.add_rows({n: (found.ids, found.shares) for n, found in findings.items()}),
            average=weighted_average([*models.values()], examples.tolist()),
            directions=directions,
            pull=self.pull(directions, heard, examples, factors, state.pull.size),
            num_trainable=state.num_trainable,
        )

    def pull(
        self, directions: Mapping[int, Tensor], heard: Sequence[int], examples: Tensor, factors: Tensor, size: int
    ) -> SparseMatrix:
        """N_n s_in^γ of every client with a direction and those who uploaded, without the zeros."""
        if self.sharing == "all":
            return SparseMatrix.zeros(size)
        uploaders, of_uploaders = torch.tensor(heard), torch.stack([unit(directions[n]) for n in heard])
        s = {n: agreement(unit(direction), of_uploaders, factors) for n, direction in directions.items()}
        for place, n in enumerate(heard):
            s[n][place] = 0
        own = self.own_agreement(torch.stack([s[n].max() for n in heard]))
        for place, n in enumerate(heard):
            s[n][place] = own[place]
        weights = {n: examples * agreements**self.gamma for n, agreements in s.items()}
        rows = {n: (uploaders[row > 0], row[row > 0]) for n, row in weights.items()}
        return SparseMatrix.zeros(size).add_rows(rows)

    def forget_clients(self, state: State, members: Collection[ClientId]) -> State:
        """Drop the models and directions of clients that have left."""
        directions = {client: direction for client, direction in state.directions.items() if client in members}
        return replace(super().forget_clients(state, members), directions=directions)

    def validate(self, state: State, upload: Upload) -> str | None:
        """Refuse a number of examples by which nobody can be weighed, and weights that no client can have computed."""
        return "'num_examples' is below 1" if upload.num_examples < 1 else super().validate(state, upload)

    def start_client(self, start: FederationInfo) -> Memory:
        """Remember no training and no mixture."""
        return Memory(None, None, EvaluationWeights.none())

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Train from the start, evaluate all candidates, and mix them."""
        start, own = download.start, client.train(download.start)
        before = [model for model in (memory.own, memory.mixture) if model is not None]
        fresh = (own, *download.models)
        candidates = (start, *fresh, *before)
        losses = client.validation_losses(candidates)
        shares = self.shares(losses, len(client.data.validation))
        mixture = mix(start, candidates, shares)
        judged = slice(1, 1 + len(fresh))
        distances = distances_from(start, fresh, client.num_trainable)
        findings = EvaluationWeights(
            torch.cat((torch.tensor([client.id]), download.ids)),
            first_order_weights(float(losses[0]), losses[judged], distances),
            shares[judged],
            share_of_averages=float(1 - shares[judged].sum().clamp(max=1)),
        )
        return Personalised(mixture, Memory(own, mixture, findings))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Upload the training that was evaluated: local training would repeat it."""
        assert memory.own is not None  # noqa: S101 - narrows the type: `personalise` has trained it
        return Trained(Upload(memory.own, len(client.data.train), memory.findings), memory, memory.own)

    def own_agreement(self, nearest: Tensor) -> Tensor:
        """Return every uploader's agreement with itself, by that with its nearest other."""
        return own_agreement(nearest)

    def shares(self, losses: Tensor, num_examples: int) -> Tensor:
        """Return q, by losses on so many validation examples; without any, all candidates weigh the same."""
        return softmax_shares(losses if num_examples else torch.zeros_like(losses), self.beta)
