"""The work of a round: one job per client, cut into batches that a worker runs at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfomo.core.client import ClientId
from fedfomo.core.model import Score
from fedfomo.engine.tensor_store import References
from fedfomo.simulation.client_batching import Timings

MADE_AT_ONCE = 64  # jobs: their downloads share a file


def purpose_of(for_checkpoint: bool) -> str:
    """Return what the names of a call's files begin with: an update after a round overwrites no file of that round."""
    return "round" if for_checkpoint else "update"


@dataclass(frozen=True)
class ClientJob:
    """What one client is to do in a round; tensors are named, not carried."""

    client: ClientId
    download: References
    memory: References | None  # None: the client has none yet
    trains: bool  # False: personalise only
    is_scored: bool  # on the client's test examples
    ledger: list[list[Any]]  # earlier queries on the client's private records
    attempts: int  # how often the queries of this job are charged
    model: References | None  # what a client without budget is left with; None: it has none yet
    is_judged: bool = False  # whether the model after the federated update is scored on validation data too
    is_final: bool = False  # whether this is the last federated update

    def places(self) -> list[str]:
        """Return the places of all tensors that this job may read."""
        return [place for named in (self.download, self.memory, self.model) for place in (named or {}).values()]


@dataclass(frozen=True)
class Batch:
    """The jobs of some clients in one round."""

    round: int
    jobs: Sequence[ClientJob]
    file: str  # for the results
    for_checkpoint: bool = True  # False: after a crash they are computed anew


@dataclass(frozen=True)
class ClientResult:
    """What came of one client's job."""

    client: ClientId
    model: References  # what the client would use now
    memory: References
    upload: References | None
    score_after_update: Score | None
    score_after_training: Score | None
    gradients: int  # examples × passes that were differentiated
    ledger: list[list[Any]]  # the queries of this job
    exceeds_budget: bool  # its budget did not suffice: it did nothing, and nothing of it leaves
    is_rolled_back: bool  # its training diverged: its memory is that from before
    losses: Sequence[float]  # of the models that the client evaluated, as its evaluator returned them
    score_on_validation: Score | None = None  # of the model after the federated update
    taken: tuple[list[int], list[float]] | None = None  # ids and weights, if the job was a federated update alone


@dataclass(frozen=True)
class BatchResult:
    """What came of a batch."""

    results: Sequence[ClientResult]
    checksums: Mapping[str, str]
    seconds: Timings


@dataclass(frozen=True)
class BatchPolicy:
    """How many clients share a batch, and so a message, a file and perhaps a computation."""

    is_stacked: bool
    workers: int
    model_bytes: int

    def size(self, num_clients: int) -> int:
        """Return the number of clients in a batch; if they are stacked, it must not depend on the workers."""
        if self.is_stacked:
            return min(max(16, num_clients // 16), 64)
        # Several batches per worker balance the load; several clients per batch save files, if these stay small.
        fair = num_clients // (8 * max(1, self.workers))
        return max(1, min(fair, 32, 4_000_000 // self.model_bytes))

    def batches(
        self,
        round: int,
        clients: Sequence[ClientId],
        jobs_of: Callable[[Sequence[ClientId]], Sequence[ClientJob]],
        session: str = "",
        for_checkpoint: bool = True,
    ) -> Iterator[Batch]:
        """Cut the work of a round into batches; the session is part of every file's name.

        Jobs are made for some dozen clients at a time, so that workers begin before all of them are there.
        """
        size = self.size(len(clients))
        made_at_once = max(1, MADE_AT_ONCE // size) * size
        for start in range(0, len(clients), made_at_once):
            jobs = jobs_of(clients[start : start + made_at_once])
            for first in range(0, len(jobs), size):
                batch = jobs[first : first + size]
                file = f"{purpose_of(for_checkpoint)}-{round:05d}-clients-{batch[0].client:05d}-{session}.safetensors"
                yield Batch(round, batch, file, for_checkpoint)
