"""How sure a metric of a whole test set is: its values on the same test set, drawn again with replacement."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedfomo.core.metrics import Metrics
from fedfomo.core.rng import stream
from fedfomo.report.intervals import Estimate

RESAMPLES = 200


def resampled(metrics: Metrics, outputs: Tensor, labels: Tensor, client: int) -> list[float]:
    """Return the primary metric on resamples of a client's test set; every model of the client meets the same ones."""
    rng = stream(0, "bootstrap", client)
    drawn = (torch.randint(len(labels), (len(labels),), generator=rng) for _ in range(RESAMPLES))
    return [metrics.measure(outputs[rows], labels[rows]) for rows in drawn]


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
