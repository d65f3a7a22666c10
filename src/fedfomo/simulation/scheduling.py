"""How the work of a round is cut into orders: into few, if they are small, and so that no worker waits for the last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fedfomo.core.client import ClientId
from fedfomo.simulation.worker import Batch, ClientJob, ClientResult, Update

# Up to so many clients a worker, one client too many is felt.
FEW = 16


@dataclass(frozen=True)
class BatchPolicy:
    """How many clients share an order, and so a message, a file and perhaps a computation."""

    is_stacked: bool
    workers: int
    model_bytes: int
    may_split: bool = False  # whether a client may personalise in one order and train in another

    def size(self, num_clients: int) -> int:
        """Return the number of clients an order; if they are stacked, it must not depend on who does the work."""
        if self.is_stacked:
            return min(max(16, num_clients // 16), 64)
        # Several orders a worker balance the load; several clients an order save files, if these stay small.
        fair = num_clients // (8 * max(1, self.workers))
        return max(1, min(fair, 32, 4_000_000 // self.model_bytes))

    def idle_at_the_end(self, num_clients: int) -> int:
        """Return how many workers would wait while the others train one client more, if that is worth a thought."""
        is_felt = self.workers < num_clients < FEW * self.workers
        return -num_clients % self.workers if self.may_split and not self.is_stacked and is_felt else 0


class RoundSchedule:
    """The orders of one round, in sequence.

    Fifteen clients on two workers would leave one idle for as long as the fifteenth trains, since no training can
    be shared. So half of the clients personalise early, all of them in the hands of the workers that would be
    idle, and train last, in whichever hands are free: each worker then has as much to do as the others.
    """

    def __init__(self, round: int, parts: Sequence[ClientJob], grouping: BatchPolicy, sitting: str = "") -> None:
        self._round = round
        self._sitting = sitting  # part of every file's name
        self._size = grouping.size(len(parts))
        self._updates: dict[ClientId, ClientResult] = {}  # of clients that have personalised and not trained
        self._num_idle = grouping.idle_at_the_end(sum(part.trains for part in parts))
        trained = [part for part in parts if part.trains]
        self._split = trained[len(trained) // 2 + 1 :] if self._num_idle else []
        ids = {part.client for part in self._split}
        self._whole = [part for part in parts if part.client not in ids]

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self._num_idle):
            early = self._split[number :: self._num_idle]
            if early:
                yield self._order([replace(part, trains=False) for part in early], "updates")
        for start in range(0, len(self._whole), self._size):
            yield self._order(self._whole[start : start + self._size])
        for part in self._split:
            yield self._order([self._rest_of(part)])

    def is_whole(self, outcome: ClientResult) -> bool:
        """Tell whether a client is done; if it has only personalised, keep that until it trains."""
        if outcome.upload is None and any(part.client == outcome.client for part in self._split):
            self._updates[outcome.client] = outcome
            return False
        return True

    def _order(self, parts: Sequence[ClientJob], what: str = "clients") -> Batch:
        file = f"round-{self._round:05d}-{what}-{parts[0].client:05d}-{self._sitting}.safetensors"
        return Batch(self._round, parts, file)

    def _rest_of(self, part: ClientJob) -> ClientJob:
        made = self._updates.pop(part.client, None)
        if made is None:  # still in the making: whoever is free does all of it, to the same bits
            return part
        update = Update(made.score_after_update, made.gradients, made.losses)
        return replace(part, memory=made.memory, before=part.memory, update=update)
