"""How far the clients' labels are from those of everybody together."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Histogram = npt.NDArray[np.float64]


def label_histogram(labels: npt.NDArray[np.int64], num_classes: int) -> Histogram:
    """Return the share of each label; all zeros when there is none."""
    counts = np.bincount(labels, minlength=num_classes)
    return counts / max(len(labels), 1)


def emd_l1(p: Histogram, q: Histogram) -> float:
    """Return the earth mover's distance of Zhao et al. (2018): Σ|p − q|."""
    return float(np.abs(p - q).sum())


def emd_official(p: Histogram, q: Histogram) -> float:
    """Return the distance as the authors of FedFomo computed it, for comparison with their tables.

    It sums |p − q| over the labels of p, then over the labels of q, so that shared labels count twice.
    """
    gaps = np.abs(p - q)
    return float(gaps[p > 0].sum() + gaps[q > 0].sum())


def mean_over_clients(
    distance: Callable[[Histogram, Histogram], float], clients: Sequence[Histogram], total: Histogram
) -> float:
    """Average a distance to the total over the clients that hold any example."""
    return float(np.mean([distance(histogram, total) for histogram in clients if histogram.any()]))


def constant_accuracy(known: npt.NDArray[np.int64], tested: npt.NDArray[np.int64]) -> float | None:
    """Return the accuracy of always answering with the most frequent of the known labels; None: there are none."""
    if len(known) == 0 or len(tested) == 0:
        return None
    return float((tested == np.bincount(known).argmax()).mean())
