"""Who is told how a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fedfomo.core.client import ClientId
from fedfomo.core.model import Score
from fedfomo.simulation.client_batching import Timings


class Watcher(Protocol):
    """Is told how a run goes on."""

    def start(self, rounds_done: int) -> None:
        """Called once, with the rounds that a checkpoint had already."""
        ...

    def client_done(self, round: int, client: ClientId) -> None:
        """Called for every client's work; after the last round, for the last federated update."""
        ...

    def round_done(
        self, round: int, after_update: Mapping[ClientId, Score], after_training: Mapping[ClientId, Score]
    ) -> None:
        """Called after every round with the scores of the clients that took part, if they were scored."""
        ...


Listener = Callable[[dict[str, Any], Timings], None]
"""Is told each round's line of the log, as it would be read back, and where the round's time went."""
