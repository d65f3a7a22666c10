"""How sure a test set makes us: 95 % intervals of one figure, and of the difference of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import numpy as np
from scipy.special import stdtrit

Z = 1.959964  # 97.5 % of a normal distribution lie below
POWER = 0.841621  # 80 % lie below
MOST_MORE = 10  # times the test cases that there are: nobody collects more
# Six coins all fall alike once in 32 throws, five once in 16: fewer examples cannot tell two models apart at 95 %.
LEAST_TO_DECIDE = 6


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def has_interval(self) -> bool:
        """Whether anything is known of how sure the figure is."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def is_above_zero(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.low > 0

    @property
    def is_below_zero(self) -> bool:
        """Whether the whole interval is below 0."""
        return self.high < 0


def of_share(share: float, number: int) -> Estimate:
    """Return the Wilson interval of a share of so many examples."""
    if number == 0 or not math.isfinite(share):
        return Estimate(share, math.nan, math.nan)
    scale = 1 + Z**2 / number
    centre = (share + Z**2 / (2 * number)) / scale
    reach = Z * math.sqrt(share * (1 - share) / number + Z**2 / (4 * number**2)) / scale
    return Estimate(share, max(0.0, min(share, centre - reach)), min(1.0, max(share, centre + reach)))


def of_mean(values: Sequence[float]) -> Estimate:
    """Return the interval of a mean: Wilson's for zeros and ones, Student's for anything else."""
    if not values:
        return Estimate(math.nan, math.nan, math.nan)
    return of_share(fmean(values), len(values)) if _is_binary(values) else of_mean_gap(values)


def of_difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """Return the interval of the mean difference of two models on the same examples.

    For zeros and ones it is that of Agresti and Min (2005): half an example is added to each of the four cells, so
    that two models which agree on all of a few examples are not taken to agree for certain. Whatever the metric, where
    the models differ on very few examples, the interval is stretched until it holds zero.
    """
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    if not gaps:
        return Estimate(math.nan, math.nan, math.nan)
    found = _of_ones_and_zeros(gaps) if _is_binary(ours) and _is_binary(theirs) else of_mean_gap(gaps)
    if sum(gap != 0 for gap in gaps) >= LEAST_TO_DECIDE or not found.has_interval:
        return found
    return replace(found, low=min(found.low, 0.0), high=max(found.high, 0.0))


def _of_ones_and_zeros(gaps: Sequence[float]) -> Estimate:
    mean = fmean(gaps)
    better, worse = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    number = len(gaps) + 2
    centre = (better - worse) / number
    reach = Z * math.sqrt((better + worse + 1) / number - centre**2) / math.sqrt(number)
    return Estimate(mean, max(-1.0, min(mean, centre - reach)), min(1.0, max(mean, centre + reach)))


def of_mean_gap(gaps: Sequence[float]) -> Estimate:
    """Return Student's interval of a mean difference over clients or examples; none where no spread was seen."""
    if not gaps:
        return Estimate(math.nan, math.nan, math.nan)
    mean = fmean(gaps)
    if min(gaps) == max(gaps):
        return Estimate(mean, math.nan, math.nan)
    reach = student(len(gaps) - 1) * stdev(gaps) / math.sqrt(len(gaps))
    return Estimate(mean, mean - reach, mean + reach)


def of_unpaired_difference(ours: Estimate, theirs: Estimate) -> Estimate:
    """Combine two intervals where nothing is known of single examples: mostly wider than needed, never too narrow.

    Both models met the same examples, and may err on different ones: their reaches are added, as for errors that are
    as opposite as can be. The root of their squares would do for independent ones only.
    """
    return Estimate(ours.value - theirs.value, ours.low - theirs.high, ours.high - theirs.low)


def of_resamples(value: float, values: Sequence[float]) -> Estimate:
    """Return the percentile interval; none where the metric is undefined on half of the resamples."""
    known = [each for each in values if math.isfinite(each)]
    if 2 * len(known) <= len(values):
        return Estimate(value, math.nan, math.nan)
    low, high = (float(end) for end in np.quantile(known, (0.025, 0.975)))
    return Estimate(value, min(low, value), max(high, value))


def of_resampled_difference(ours: Estimate, theirs: Estimate, pairs: Sequence[tuple[float, float]]) -> Estimate:
    """Return the percentile interval of the difference of two models on the same resamples."""
    return of_resamples(ours.value - theirs.value, [own - other for own, other in pairs])


def more_cases(gain: Estimate, number: int) -> int | None:
    """Return about how many further test cases would decide a difference of the size that was seen.

    The standard error falls with the root of the number of cases. A difference d is found at the 5 % level with 80 %
    power if its standard error is |d| / (1.96 + 0.84). The present standard error is half the interval / 1.96.

    Returns:
        The number, rounded up to two digits; None: it is more than ten times those that there are.
    """
    if gain.value == 0 or not gain.has_interval:
        return None
    error = (gain.high - gain.low) / 2 / Z
    needed = number * ((Z + POWER) * error / abs(gain.value)) ** 2
    more = max(needed - number, LEAST_TO_DECIDE)
    if more > MOST_MORE * number:
        return None
    unit = 10 ** max(0, math.floor(math.log10(more)) - 1)
    return math.ceil(more / unit) * unit


def student(freedom: int) -> float:
    """Return the 97.5 % point of Student's t."""
    return float(stdtrit(freedom, 0.975))


def _is_binary(values: Sequence[float]) -> bool:
    return all(value in (0.0, 1.0) for value in values)
