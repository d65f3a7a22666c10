"""What a method's state tells about who values whom, if it tells anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from fedfomo.core.client import ClientId
from fedfomo.core.sparse import SparseMatrix


@runtime_checkable
class HasAffinity(Protocol):
    """A server state that knows who values whom: receiver × giver."""

    @property
    def affinity(self) -> SparseMatrix:
        """The matrix."""
        ...


@runtime_checkable
class HasTaken(Protocol):
    """A server state that knows who has learnt from whom, and how much: receiver × giver."""

    @property
    def taken(self) -> SparseMatrix:
        """The matrix."""
        ...


class _Findings(Protocol):
    @property
    def ids(self) -> Tensor: ...

    @property
    def shares(self) -> Tensor: ...


@runtime_checkable
class HasFindings(Protocol):
    """A client's memory that knows from whom it took how much in its last federated update."""

    @property
    def findings(self) -> _Findings:
        """Ids and shares."""
        ...


def taken_in_all(state: Any, memories: Mapping[ClientId, Any]) -> SparseMatrix | None:
    """Return who has learnt from whom: what the server knows, and what clients took since."""
    if not isinstance(state, HasTaken):
        return None
    rows: dict[int, tuple[Tensor, Tensor]] = {}
    for client, memory in memories.items():
        if not isinstance(memory, HasFindings):
            return state.taken
        rows[client] = memory.findings.ids, memory.findings.shares
    return state.taken.add_rows(rows)
