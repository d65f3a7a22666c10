"""What is in groups of images, and how different the clients are that sample from them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.latent_groups import Groups
from fedfomo.datasets.partitions import Partition, by_group
from fedfomo.datasets.scenarios import label_distances

CLASS_NAMES: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("class_names.toml").read_text())
CLIENTS = 15
SINGLE_CLASS = 0.9
"""A group is of a single class if that class has at least this share of its images."""
MARGIN = 0.02
"""A client is informative if its most frequent label, as a constant answer, errs in more of its tests than this."""

MIXED = 0.9


@dataclass(frozen=True)
class GroupFacts:
    """Facts of one division into groups; clients are those of a scenario with 15 clients and seed 0."""

    sizes: tuple[int, ...]  # images, training and test together
    counts: tuple[tuple[int, ...], ...]  # images of every class in every group
    single_class_groups: int
    label_distance_l1: float  # mean over clients of Σ|p − q|
    label_distance_authors: float  # the same as FedFomo's authors count it, for comparison with their tables
    informative_clients: int  # of 15
    mixed_clients: int  # of 15, those of whose tests their most frequent label is right in less than 90 %
    constant_answer: float  # mean accuracy in % of answering every client with its most frequent label

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain values."""
        return asdict(self)


def describe_groups(data: DataSet, train: Groups, test: Groups, num_groups: int) -> GroupFacts:
    """Collect the facts of one division."""
    labels = np.concatenate([data.train.labels.numpy(), data.test.labels.numpy()])
    groups = np.concatenate([train, test])
    counts = np.zeros((num_groups, data.num_classes), dtype=np.int64)
    np.add.at(counts, (groups, labels), 1)
    partition = by_group(train, test, num_groups, CLIENTS, seed=0)
    distance_l1, distance_authors = label_distances(partition, data)
    constant = _constant_answers(partition, data)
    return GroupFacts(
        sizes=tuple(counts.sum(1).tolist()),
        counts=tuple(tuple(row) for row in counts.tolist()),
        single_class_groups=int((counts.max(1) >= SINGLE_CLASS * counts.sum(1)).sum()),
        label_distance_l1=round(distance_l1, 4),
        label_distance_authors=round(distance_authors, 4),
        informative_clients=sum(accuracy < 1 - MARGIN for accuracy in constant),
        mixed_clients=sum(accuracy < MIXED for accuracy in constant),
        constant_answer=round(100 * float(np.mean(constant)), 2),
    )


def name_classes(counts: Sequence[Sequence[int]], names: Sequence[str], most: int = 6) -> list[str]:
    """Write for every group its most frequent classes, with their shares of the group in %."""
    lines: list[str] = []
    for row in counts:
        shares = 100 * np.asarray(row) / max(sum(row), 1)
        order = [label for label in np.argsort(-shares, kind="stable")[:most].tolist() if shares[label] >= 1]
        lines.append(", ".join(f"{names[label]} {shares[label]:.0f}" for label in order))
    return lines


def _constant_answers(partition: Partition, data: DataSet) -> list[float]:
    """Return for every client the accuracy of always answering with its most frequent training label."""
    train, test = data.train.labels.numpy(), data.test.labels.numpy()
    usual = [np.bincount(train[client.train]).argmax() for client in partition.clients]
    return [float((test[client.test] == label).mean()) for client, label in zip(partition.clients, usual, strict=True)]
