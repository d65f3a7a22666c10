"""Which round was best on validation data, and when to stop: never by test data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from fedfomo.core.client import ClientId
from fedfomo.core.metrics import Score


class BestRound:
    """Follows the mean over clients of the primary metric on validation data, after the federated update.

    A client that did not take part in a round counts with what it had last; one without validation data does not count.
    """

    def __init__(self, patience: int) -> None:
        self.round: int | None = None  # the best so far
        self.value = -math.inf
        self._patience = patience
        self._last = -1
        self._latest: dict[ClientId, float] = {}

    def see(self, round: int, scores: Mapping[ClientId, Score]) -> bool:
        """Count a round, and tell whether it is the best so far."""
        self._latest |= known_metrics(scores)
        self._last = round
        value = fmean(self._latest.values()) if self._latest else -math.inf
        if value <= self.value:
            return False
        self.round, self.value = round, value
        return True

    @property
    def has_stalled(self) -> bool:
        """Whether so many rounds have gone by without a gain; never, as long as nothing was measured."""
        return self.round is not None and self._last - self.round >= self._patience


def known_metrics(scores: Mapping[ClientId, Score]) -> dict[ClientId, float]:
    """Return the primary metric of the clients that have one."""
    return {client: score.metric for client, score in scores.items() if math.isfinite(score.metric)}
