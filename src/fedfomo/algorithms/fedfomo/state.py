"""What FedFomo keeps and sends, what no client can have sent, and what its state tells reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from fedfomo.core.algorithm import Algorithm, EvaluatedModels
from fedfomo.core.client import ClientId
from fedfomo.core.messages import Ids, Numbers, Parameters
from fedfomo.core.sparse import SparseMatrix

LARGEST_WEIGHT = 1e100  # the largest float32 loss over the smallest distance is 3e50, and no sum of such overflows


@dataclass(frozen=True)
class EvaluationWeights:
    """What a client computed for the models that it evaluated, its own first."""

    ids: Ids
    increments: Numbers  # w of Eq. 3: what is added to row i of P
    shares: Numbers  # w*: how much of each model is in the update
    share_of_averages: float | None = None  # w* of candidates that are nobody's model; the paper has none

    @classmethod
    def none(cls) -> EvaluationWeights:
        """Return the weights of a client that has evaluated no model."""
        nothing = torch.empty(0, dtype=torch.float64)
        return cls(torch.empty(0, dtype=torch.int64), nothing, nothing)


@dataclass(frozen=True)
class State:
    """The server's state."""

    round: int  # t: rounds collected so far
    models: Mapping[int, Parameters]  # θ_n: every client's latest
    last_uploaders: Ids  # of the last round in which anybody uploaded
    affinity: SparseMatrix  # P, receiver × giver; the diagonal is never used, since nobody is sent its own model
    taken: SparseMatrix  # Σ w* over rounds, receiver × giver: for reports

    @classmethod
    def start(cls, num_clients: int) -> Self:
        """Start without models, and with P = diag(1, …, 1)."""
        nobody = torch.empty(0, dtype=torch.int64)
        return cls(0, {}, nobody, SparseMatrix.identity(num_clients), SparseMatrix.zeros(num_clients))


@dataclass(frozen=True)
class Download:
    """Models to evaluate."""

    ids: Ids
    models: tuple[Parameters, ...]  # of these clients, in their order


@dataclass(frozen=True)
class Upload:
    """A locally trained model, and the weights of the federated update before."""

    model: Parameters
    findings: EvaluationWeights


@dataclass(frozen=True)
class Memory:
    """What a client keeps between rounds."""

    reference: Parameters  # θ_i^{t-1}: after its last federated update
    own: Parameters  # θ_i^t: after the local training that followed
    findings: EvaluationWeights


def validate_weights(findings: EvaluationWeights) -> str | None:
    """Say what no client can have computed, or return None."""
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


class HasFindings(Protocol):
    """A client's memory, or its upload, with what it found out about other clients' models."""

    @property
    def findings(self) -> EvaluationWeights:
        """Weights and shares of the models that it evaluated."""
        ...


AnyState = TypeVar("AnyState", bound=State)
AnyDownload = TypeVar("AnyDownload")
AnyUpload = TypeVar("AnyUpload", bound=HasFindings)
AnyMemory = TypeVar("AnyMemory", bound=HasFindings)


class KeepsAffinity(Algorithm[AnyState, AnyDownload, AnyUpload, AnyMemory]):
    """What the state of FedFomo and of its relatives tells, and how it forgets a client."""

    def forget_clients(self, state: AnyState, members: Collection[ClientId]) -> AnyState:
        """Drop the models of clients that have left."""
        if state.models.keys() <= set(members):
            return state
        models = {client: model for client, model in state.models.items() if client in members}
        uploaders = [client for client in state.last_uploaders.tolist() if client in members]
        return replace(state, models=models, last_uploaders=torch.tensor(uploaders, dtype=torch.int64))

    def validate(self, state: AnyState, upload: AnyUpload) -> str | None:
        """Refuse weights that no client can have computed: whatever arrives, P must stay finite."""
        return validate_weights(upload.findings)

    def affinity(self, state: AnyState) -> SparseMatrix:
        """Return P."""
        return state.affinity

    def mixing_history(self, state: AnyState) -> SparseMatrix:
        """Return Σ w* over rounds."""
        return state.taken

    def mixing_weights(self, memory: AnyMemory) -> tuple[Tensor, Tensor]:
        """Return w* of the last federated update."""
        return memory.findings.ids, memory.findings.shares

    def evaluated_models(self, upload: Mapping[str, Any]) -> EvaluatedModels | None:
        """Read w and w* in the log, which leaves out what is long."""
        if "findings.ids" not in upload:
            return None
        weights, shares = upload["findings.increments"], upload["findings.shares"]
        is_update = any(shares) or bool(upload.get("findings.share_of_averages"))
        return EvaluatedModels(upload["findings.ids"], weights, shares, is_update)
