"""Following a run while it goes on.

Nothing here imports torch when it runs: command lines that only name trackers or progress bars start at once.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedfomo.io import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedfomo.core.client import ClientId
    from fedfomo.core.model import Score
    from fedfomo.simulation.client_batching import Timings


@dataclass(frozen=True)
class FinishedRound:
    """A round whose checkpoint is saved."""

    round: int
    after_update: Mapping[ClientId, Score]  # of the clients that took part, if they were scored
    after_training: Mapping[ClientId, Score]
    log: Mapping[str, Any]  # what is written to rounds.jsonl
    seconds: Timings  # where the round's time went

    @property
    def line(self) -> dict[str, Any]:
        """The round's line of rounds.jsonl, as it would be read back."""
        return json.loads(to_json(self.log))


class Callback:
    """Is called while a run goes on; override what you need. Whatever a method raises ends the run."""

    def start(self, rounds_done: int) -> None:
        """Called once, with the number of rounds that a checkpoint had already."""

    def client_done(self, round: int, client: ClientId) -> None:
        """Called for every client's work; after the last round, for the last federated update."""

    def round_done(self, finished: FinishedRound) -> None:
        """Called after every round, when its checkpoint is saved."""


class Callbacks(Callback):
    """Several callbacks, called in order."""

    def __init__(self, *callbacks: Callback | None) -> None:
        self._callbacks = [callback for callback in callbacks if callback is not None]

    def start(self, rounds_done: int) -> None:
        """Call each."""
        for callback in self._callbacks:
            callback.start(rounds_done)

    def client_done(self, round: int, client: ClientId) -> None:
        """Call each."""
        for callback in self._callbacks:
            callback.client_done(round, client)

    def round_done(self, finished: FinishedRound) -> None:
        """Call each."""
        for callback in self._callbacks:
            callback.round_done(finished)
