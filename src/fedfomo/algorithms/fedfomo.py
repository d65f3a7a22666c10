"""FedFomo (Zhang, Sapra, Fidler, Yeung, Alvarez; ICLR 2021): federate with those who help.

The server keeps every client's model apart. A client receives a few of them, judges each on its own validation
data, and moves towards those that lower its loss, in proportion to (loss improvement) / (distance). What it
learns about the others becomes the server's affinity matrix P, which decides whose models it is sent next.

A client's round: reference ← mix(reference, {own, downloads}), then own ← train(reference), which it uploads. So
θ_i^{t-1} is its model after the last federated update, and θ_i^t the same after the training that followed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import group_averages
from fedfomo.algorithms.fedfomo_defences import (
    clipped,
    deduplicate,
    find_free_riders,
    near_duplicates,
    reject_worse_mixture,
    retrain_head,
)
from fedfomo.algorithms.fedfomo_equations import (
    affinity_increments,
    fall_back_to_own,
    federated_update,
    mix,
)
from fedfomo.algorithms.fedfomo_selection import choose_downloads, exploration_rate
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Records, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.clustering import group_by_affinity
from fedfomo.core.messages import Ids, Numbers, Offsets, Parameters
from fedfomo.core.options import Count, CountOrZero, Fraction, NonNegative
from fedfomo.core.sparse import SparseMatrix
from fedfomo.errors import require

# The largest float32 loss over the smallest distance is 3e50: no client finds more, and no sum of such overflows.
LARGEST_WEIGHT = 1e100


@dataclass(frozen=True)
class EvaluationWeights:
    """What a client found out about the models of some clients, its own among them."""

    ids: Ids
    increments: Numbers  # to its row of P
    shares: Numbers  # w*: how much of each it mixed in
    share_of_averages: float | None = None  # likewise of all averages, which are nobody's; None: it was sent none

    @classmethod
    def none(cls) -> EvaluationWeights:
        """Return the findings of a client that has judged nobody."""
        nothing = torch.empty(0, dtype=torch.float64)
        return cls(torch.empty(0, dtype=torch.int64), nothing, nothing)


def validate_weights(findings: EvaluationWeights) -> str | None:
    """Say what no client can have found out, or return None: whatever arrives, P must stay finite."""
    ids: list[int] = findings.ids.tolist()
    if len(set(ids)) < len(ids):
        return "'findings.ids' names a client twice"
    if any(abs(weight) > LARGEST_WEIGHT for weight in findings.increments.tolist()):
        return f"'findings.increments' has a weight beyond {LARGEST_WEIGHT:.0e}"
    if any(not 0 <= share <= 1 for share in findings.shares.tolist()):
        return "'findings.shares' has a share that is not from 0 to 1"
    if not 0 <= (findings.share_of_averages or 0) <= 1:
        return "'findings.share_of_averages' is not from 0 to 1"
    return None


@dataclass(frozen=True)
class State:
    """Every client's latest model, who uploaded in the last round, and the affinity matrix."""

    round: int  # t: rounds collected so far
    models: Mapping[int, Parameters]  # θ_n
    last_uploaders: Ids
    affinity: SparseMatrix  # P, receiver × giver; the diagonal is never used, since nobody is sent its own model
    taken: SparseMatrix  # Σ w* over rounds, receiver × giver: who learnt from whom
    averages: tuple[Parameters, ...] = ()
    copies: Offsets | None = None  # for each client, the first of the set of near copies that its model is in

    @classmethod
    def start(cls, num_clients: int) -> State:
        """Start without models, and with P = diag(1, …, 1)."""
        nobody = torch.empty(0, dtype=torch.int64)
        return cls(0, {}, nobody, SparseMatrix.identity(num_clients), SparseMatrix.zeros(num_clients))

    @cached_property
    def _uploaders(self) -> Tensor:
        return torch.tensor(sorted(self.models), dtype=torch.int64)

    def available_to(self, client: ClientId, availability: str) -> Tensor:
        """Return, in ascending order, the others whose models can be sent: nobody who has never uploaded."""
        ids = self.last_uploaders if availability == "last_round" else self._uploaders
        place = int(torch.searchsorted(ids, client))
        is_there = place < ids.numel() and int(ids[place]) == client
        return torch.cat((ids[:place], ids[place + 1 :])) if is_there else ids

    def after(self, uploads: Mapping[ClientId, Upload]) -> State:
        """Replace the models that were uploaded, and add to the rows of P: p_i ← p_i + w.

        A round in which nothing arrived leaves everything as it was, the last round's models and averages included.
        """
        if not uploads:
            return replace(self, round=self.round + 1)
        findings = {client: upload.findings for client, upload in uploads.items()}
        affinity = self.affinity.add_rows({client: (found.ids, found.increments) for client, found in findings.items()})
        taken = self.taken.add_rows({client: (found.ids, found.shares) for client, found in findings.items()})
        models = {**self.models, **{client: upload.model for client, upload in uploads.items()}}
        uploaders = torch.tensor(sorted(uploads), dtype=torch.int64)
        return State(self.round + 1, models, uploaders, affinity, taken)


@dataclass(frozen=True)
class Download:
    """Models of other clients, and averages of models if these are wanted."""

    ids: Ids
    models: tuple[Parameters, ...]
    averages: tuple[Parameters, ...]


@dataclass(frozen=True)
class Upload:
    """A locally trained model, and what the client found out about others before."""

    model: Parameters
    findings: EvaluationWeights


@dataclass(frozen=True)
class Memory:
    """A client's models before and after its last local training, and what it found out since."""

    reference: Parameters  # θ_i^{t-1}: after its last federated update
    own: Parameters  # θ_i^t: as last trained
    findings: EvaluationWeights


class HasFindings(Protocol):
    """A client's memory of its last federated update."""

    @property
    def findings(self) -> EvaluationWeights:
        """What it found out."""
        ...


AnyDownload = TypeVar("AnyDownload")
AnyMemory = TypeVar("AnyMemory", bound=HasFindings)


class KnowsAffinity(Algorithm[State, AnyDownload, Upload, AnyMemory]):
    """What FedFomo and its variant for averages tell of their states."""

    evaluates_on: ClassVar[Records] = "validation"

    def validate(self, state: State, upload: Upload) -> str | None:
        """Refuse findings that nobody can have."""
        return validate_weights(upload.findings)

    def affinity(self, state: State) -> SparseMatrix:
        """Return P."""
        return state.affinity

    def mixing_history(self, state: State) -> SparseMatrix:
        """Return Σ w* over rounds."""
        return state.taken

    def mixing_weights(self, memory: AnyMemory) -> tuple[Tensor, Tensor]:
        """Return w*."""
        return memory.findings.ids, memory.findings.shares

    def forget_clients(self, state: State, members: Collection[ClientId]) -> State:
        """Drop the models of others, and averages, which may be of a single model; the next round makes new ones."""
        if state.models.keys() <= set(members):
            return state
        models = {client: model for client, model in state.models.items() if client in members}
        uploaders = [client for client in state.last_uploaders.tolist() if client in members]
        return replace(state, models=models, last_uploaders=state.last_uploaders.new_tensor(uploaders), averages=())


@register("fedfomo")
@dataclass(frozen=True)
class FedFomo(KnowsAffinity[Download, Memory]):
    """Every client mixes the models that help it, by first-order weights."""

    sends: ClassVar[str] = "M models down, 1 up with weights and shares of those that it was sent"
    compute: ClassVar[str] = "as FedAvg, and judges M + 2 models"
    judged_first: ClassVar[tuple[str, ...]] = ("reference", "own")  # of the models in `personalise`, for reports

    num_downloads: Count = 5  # M
    """Models of other clients sent to each client a round; its own is always a candidate and not counted."""
    epsilon: Fraction = 0.3
    """Chance of a random model in a slot, before decay."""
    epsilon_decay: NonNegative = 0.05
    """Taken off that chance in every round."""
    norm: Literal["l2", "l1"] = "l2"
    """Distance between models; the authors' code uses l1."""
    affinity_update: Literal["raw", "normalised"] = "raw"
    """Add weights to the affinity as they are, or divided by |their sum| as the authors' code does."""
    availability: Literal["last_round", "latest"] = "last_round"
    """Send only models uploaded in the last round, or each client's latest however old."""
    num_averages: CountOrZero = 0
    """Cluster averages, and their mean, as further candidates; the authors' code has one per distribution."""
    keep_training: bool = False
    """Where no model helps, go on from the client's own training, and not from its last federated model."""
    check_mixture: bool = False
    """Judge the mixture too, and keep the better of reference and own model where it is worse than these."""
    one_slot_for_copies: bool = False
    """Of models that are nearly the same, send a client no more than one."""
    weight_limit: NonNegative = 0.0
    """Clip what clients report at so many times the round's median; 0: take it as it is."""
    new_head_epochs: CountOrZero = 0
    """After the last round, train the last layer anew for so many epochs: what it meant by a trigger is gone."""
    flag_free_riders: bool = False
    """Name clients that upload what they were sent, or sent before; nothing else changes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            not (self.keep_training and self.check_mixture),
            "keep_training goes on from what check_mixture would drop: choose one of them",
        )

    def start_server(self, start: FederationInfo) -> State:
        """Start without models."""
        return State.start(start.num_clients)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the models of highest affinity, some at random."""
        epsilon = exploration_rate(state.round, self.epsilon, self.epsilon_decay)
        available = state.available_to(to, self.availability)
        if state.copies is not None:
            available = deduplicate(state.copies, state.affinity.row(to), available, rng)
        ids = choose_downloads(state.affinity.row(to), available, self.num_downloads, epsilon, rng)
        models = tuple(state.models[n] for n in ids)
        return Download(torch.tensor(ids, dtype=torch.int64), models, state.averages)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Store models, update P, and average clusters if these are wanted."""
        after = state.after(self._clipped(uploads) if self.weight_limit else uploads)
        if self.one_slot_for_copies:
            ids = after.last_uploaders if self.availability == "last_round" else torch.tensor(sorted(after.models))
            after = replace(after, copies=near_duplicates(ids, after.models, after.affinity.size))
        if not (self.num_averages and uploads):
            return after
        groups = group_by_affinity(after.affinity.submatrix(after.last_uploaders), self.num_averages)
        models = [after.models[n] for n in after.last_uploaders.tolist()]
        return replace(after, averages=group_averages(models, groups))

    def flag_uploads(
        self, state: State, downloads: Mapping[ClientId, Download], uploads: Mapping[ClientId, Upload]
    ) -> dict[ClientId, str]:
        """Name those who uploaded nearly what they had, if that is asked for."""
        if not self.flag_free_riders:
            return {}
        models = {client: upload.model for client, upload in uploads.items()}
        sent = {client: downloads[client].ids.tolist() for client in uploads}
        return {
            client: "its own last model again" if client == model else f"nearly the model of client {model}"
            for client, model in find_free_riders(models, state.models, sent).items()
        }

    def _clipped(self, uploads: Mapping[ClientId, Upload]) -> dict[ClientId, Upload]:
        reports = clipped({n: upload.findings.increments for n, upload in uploads.items()}, self.weight_limit)
        return {
            n: replace(upload, findings=replace(upload.findings, increments=reports[n]))
            for n, upload in uploads.items()
        }

    def start_client(self, start: FederationInfo) -> Memory:
        """Take the common initial model for both past and present."""
        return Memory(start.initial, start.initial, EvaluationWeights.none())

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Judge the candidates, own model included, and move from the reference towards those that help."""
        candidates = (memory.own, *download.models, *download.averages)
        reference_loss, *losses = client.validation_losses((memory.reference, *candidates)).tolist()
        can_judge = len(client.data.validation) > 0
        model, mixing, weights = federated_update(
            memory.reference, candidates, reference_loss, losses, client.num_trainable, self.norm, can_judge
        )
        if self.check_mixture:
            mixing = reject_worse_mixture(mixing, client.validation_losses((model,)).item(), reference_loss, losses[0])
            model = mix(memory.reference, candidates, mixing)
        if self.keep_training and not torch.equal(memory.own, memory.reference):  # before any training there is none
            mixing = fall_back_to_own(mixing)
            model = mix(memory.reference, candidates, mixing)
        ids = torch.cat((torch.tensor([client.id]), download.ids))  # averages have no column in P
        increments = affinity_increments(weights, self.affinity_update)[: len(ids)]
        of_averages = min(1.0, float(mixing[len(ids) :].sum())) if download.averages else None
        kept = Memory(model, memory.own, EvaluationWeights(ids, increments, mixing[: len(ids)], of_averages))
        return Personalised(retrain_head(client, model, self.new_head_epochs), kept)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train from the mixture; it stays behind as the next round's reference."""
        own = client.train(memory.reference)
        return Trained(Upload(own, memory.findings), replace(memory, own=own), own)
