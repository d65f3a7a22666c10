"""What to say about many clients' accuracies: never the mean alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev


@dataclass(frozen=True)
class Summary:
    """The spread of one figure over clients."""

    mean: float  # every client counts alike, however many examples it has
    std: float
    worst: float
    tenth_percentile: float
    share_better: float | None  # than training alone; None: there is nothing to compare with
    share_worse: float | None
    num_clients: int  # those with test examples


def summarise(accuracies: Mapping[int, float], local: Mapping[int, float] | None = None) -> Summary:
    """Summarise accuracies by client, leaving out clients without test examples."""
    known = {client: value for client, value in accuracies.items() if math.isfinite(value)}
    if not known:
        return Summary(math.nan, math.nan, math.nan, math.nan, None, None, 0)
    values = sorted(known.values())
    better = worse = None
    if local is not None:
        better = fmean(float(value > local[client]) for client, value in known.items())
        worse = fmean(float(value < local[client]) for client, value in known.items())
    return Summary(fmean(values), pstdev(values), values[0], percentile(values, 0.1), better, worse, len(values))


def percentile(ascending: Sequence[float], share: float) -> float:
    """Interpolate between the two values nearest to a share of the way up."""
    position = share * (len(ascending) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ascending) - 1)
    return ascending[below] + (position - below) * (ascending[above] - ascending[below])
