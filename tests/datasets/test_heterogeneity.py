"""Distances between label histograms, worked by hand."""

import numpy as np
import pytest

from fedfomo.datasets.heterogeneity import emd_l1, emd_official, label_histogram, mean_over_clients

UNIFORM = np.full(10, 0.1)


@pytest.mark.parametrize(
    ("p", "l1", "official"),
    [
        # Two classes: 2·0.4 + 8·0.1; the official sum counts 2·0.4 once more.
        ([0.5, 0.5] + [0.0] * 8, 1.6, 2.4),
        # One class: 0.9 + 9·0.1; the official sum counts 0.9 once more.
        ([1.0] + [0.0] * 9, 1.8, 2.7),
        # Nearly one class: every label is shared, so everything counts twice.
        ([0.9991] + [0.0001] * 9, 1.7982, 3.5964),
        ([0.1] * 10, 0.0, 0.0),
    ],
)
def test_distance_to_uniform(p: list[float], l1: float, official: float) -> None:
    assert emd_l1(np.array(p), UNIFORM) == pytest.approx(l1)
    assert emd_official(np.array(p), UNIFORM) == pytest.approx(official)


def test_labels_that_the_total_lacks_count_once() -> None:
    p, q = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.5, 0.5])
    assert emd_l1(p, q) == 1.0
    assert emd_official(p, q) == 1.0  # the label they share has no gap


def test_histogram_counts_shares() -> None:
    assert label_histogram(np.array([0, 2, 2, 2]), 4).tolist() == [0.25, 0, 0.75, 0]
    assert label_histogram(np.zeros(0, dtype=np.int64), 2).tolist() == [0, 0]


def test_mean_leaves_out_clients_without_examples() -> None:
    clients = [np.eye(10)[0], UNIFORM, np.zeros(10)]
    assert mean_over_clients(emd_l1, clients, UNIFORM) == pytest.approx(0.9)
    assert mean_over_clients(emd_official, clients, UNIFORM) == pytest.approx(1.35)
