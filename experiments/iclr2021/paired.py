"""Is one method ahead of another? Paired differences, one for each seed: a run's clients share models, seeds do not.

A seed gives both methods the same clients, the same initial model and the same draws; its difference is the mean over
clients of the differences in accuracy, in points. Of two methods the first is

- even with the other, if the 95 % t interval of its mean lead over seeds lies within one point on either side;
- ahead or behind, if a two-sided paired t test over seeds says so, after Holm's correction for all rivals of a regime;
- open, otherwise: nothing is assumed of what seeds do not show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Literal

CONFIDENCE = 0.95
MARGIN = 1.0
"""Points: methods whose interval is within this are even."""
Verdict = Literal["ahead", "behind", "even", "open"]
Outcome = Literal["win", "loss", "even", "open"]


@dataclass(frozen=True)
class Lead:
    """By how many points one method is ahead of another, once for each seed that both have."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def half_width(self) -> float:
        """Half the width of the t interval of the mean; a single seed has none."""
        number = len(self.values)
        if number < 2:
            return math.inf
        from scipy.stats import t  # takes a while to import

        return float(t.ppf((1 + CONFIDENCE) / 2, number - 1)) * stdev(self.values) / math.sqrt(number)

    @property
    def p_value(self) -> float:
        """How probable a mean at least as far from zero would be if methods were equal: the two-sided t test."""
        number = len(self.values)
        if number < 2 or not any(self.values):
            return 1.0
        error = stdev(self.values) / math.sqrt(number)
        if error == 0.0:
            return 0.0
        from scipy.stats import t

        return float(2 * t.sf(abs(self.mean) / error, number - 1))

    @property
    def is_even(self) -> bool:
        """Whether the whole interval lies within the margin."""
        return abs(self.mean) + self.half_width <= MARGIN

    def __str__(self) -> str:
        text = f"{self.mean:+.1f}".replace("-", "−")
        return text if math.isinf(self.half_width) else f"{text} ± {self.half_width:.1f}"


def lead(one: Mapping[int, Sequence[float | None]], other: Mapping[int, Sequence[float | None]]) -> Lead | None:
    """Return by how much one method leads, from accuracies (0 to 1) by seed and client; None without common seeds."""
    values: list[float] = []
    for seed in sorted(one.keys() & other.keys()):
        pairs = zip(one[seed], other[seed], strict=True)
        values.append(100 * fmean(a - b for a, b in pairs if a is not None and b is not None))
    return Lead(tuple(values)) if values else None


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected for their number (Holm, 1979): each holds for the whole family."""
    adjusted: dict[str, float] = {}
    largest = 0.0
    for position, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - position) * p_values[name]))
        adjusted[name] = largest
    return adjusted


def verdicts(leads: Mapping[str, Lead]) -> dict[str, Verdict]:
    """Say of a method, from its leads over all rivals, how it stands against each."""
    adjusted = holm({name: one.p_value for name, one in leads.items()})
    return {name: _verdict(one, adjusted[name]) for name, one in leads.items()}


def close_behind(leads: Mapping[str, Lead]) -> dict[str, Lead]:
    """Return the leads over rivals that are ahead by less than the margin, and not by chance."""
    adjusted = holm({name: one.p_value for name, one in leads.items()})
    return {
        name: one for name, one in leads.items() if one.is_even and one.mean < 0 and adjusted[name] < 1 - CONFIDENCE
    }


def _verdict(one: Lead, adjusted: float) -> Verdict:
    if one.is_even:
        return "even"
    if adjusted >= 1 - CONFIDENCE:
        return "open"
    return "ahead" if one.mean > 0 else "behind"


def outcome(stands: Mapping[str, Verdict]) -> Outcome:
    """Sum up a regime: a win is ahead of all, a loss behind anybody, even neither, and nothing open that matters."""
    found = set(stands.values())
    if "behind" in found:
        return "loss"
    if not found or "open" in found:
        return "open"
    return "win" if found == {"ahead"} else "even"
