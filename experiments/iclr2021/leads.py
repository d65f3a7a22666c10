"""By how much one method is ahead of another, and whether that may be chance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, stdev

EVEN = 1.0
"""Points of accuracy: a lead below this is none."""
CHANCE = 5.0
"""Points by which a single seed may deceive: means of one method have moved by as much from one round to the next."""
CONFIDENCE = 0.95
"""Of the interval around a mean over several seeds."""


@dataclass(frozen=True)
class Lead:
    """A lead in points of accuracy, once for each seed that both sides have."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def margin(self) -> float:
        """How far the mean may be off: Student's interval over seeds, or what a single seed may deceive by."""
        number = len(self.values)
        if number == 1:
            return CHANCE
        from scipy.stats import t  # takes a while to import

        return float(t.ppf((1 + CONFIDENCE) / 2, number - 1)) * stdev(self.values) / math.sqrt(number)

    def is_open(self, bar: float = 0.0) -> bool:
        """Tell whether it may be chance that the mean is on this side of a bar."""
        return abs(self.mean - bar) < self.margin

    @property
    def is_even(self) -> bool:
        """Whether neither side is ahead to speak of, as far as seeds agree on that."""
        return abs(self.mean) < EVEN and self.margin <= CHANCE

    @property
    def is_clear(self) -> bool:
        """Whether one side is ahead, and not by chance."""
        return abs(self.mean) >= EVEN and not self.is_open()
