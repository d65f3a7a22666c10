"""The summary of a scenario: what there is to know of a data set spread over clients, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.heterogeneity import constant_accuracy
from fedfomo.datasets.partitions import ClientIndices, Indices, Partition
from fedfomo.datasets.scenarios import label_distances, leftovers, partition_data, shortages

PUBLISHED_EMD: dict[str, dict[int, float]] = {
    "cifar10": {2: 1.05, 3: 1.41, 4: 1.28, 5: 2.80, 10: 2.70},
    "cifar100": {2: 1.58, 3: 1.96, 4: 2.21, 5: 2.41, 10: 2.71},
}
"""The label distances in the paper's tables, by number of groups (D), as its authors count them."""

INFORMATIVE = 0.98
"""A client can tell methods apart if a constant answer is right in a smaller share of its test data."""


@dataclass(frozen=True)
class ClientSummary:
    """What one client holds."""

    group: int | None  # the distribution behind its training examples
    target: int  # the client whose validation and test examples it holds
    train: int  # numbers of examples
    validation: int
    test: int
    train_labels: tuple[int, ...]  # how many of each
    target_labels: tuple[int, ...]  # likewise, of validation and test examples together
    overlap: float | None  # of the two mixes of labels, from 0 to 1; none where the client lacks either
    constant: float | None  # accuracy of its most frequent label as a constant answer; none without test data


@dataclass(frozen=True)
class ScenarioSummary:
    """What all clients hold, and how different they are."""

    dataset: str
    fingerprint: str
    config: ScenarioConfig
    seed: int
    num_classes: int
    train: int  # examples that anybody trains on, each counted once
    validation: int
    test: int
    shared: int  # of the training examples, those that all clients train on
    emd_l1: float
    emd_official: float
    emd_published: float | None
    mean_overlap: float | None
    share_out_of_distribution: float
    num_informative: int  # clients whom a constant answer does not serve within two points of everything
    clients: tuple[ClientSummary, ...]
    warnings: tuple[str, ...]


def summarise_scenario(config: ScenarioConfig, data: DataSet, seed: int) -> ScenarioSummary:
    """Spread a data set over clients as a run with this seed would, and describe the outcome."""
    partition = partition_data(config, data, seed)
    clients = tuple(_summarise_client(number, partition, data) for number in range(len(partition.clients)))
    known = [client.overlap for client in clients if client.overlap is not None]
    emd_l1, emd_official = label_distances(partition, data)
    published = PUBLISHED_EMD.get(data.name, {}).get(config.distributions)
    return ScenarioSummary(
        dataset=data.name,
        fingerprint=data.fingerprint,
        config=config,
        seed=seed,
        num_classes=data.num_classes,
        train=len(np.unique(np.concatenate([client.train for client in partition.clients]))),
        validation=sum(client.validation for client in clients),
        test=sum(client.test for client in clients),
        shared=len(partition.pool),
        emd_l1=emd_l1,
        emd_official=emd_official,
        # The paper's figures are of clients that share nothing.
        emd_published=published if config.has_latent_groups and not config.share_fraction else None,
        mean_overlap=fmean(known) if known else None,
        share_out_of_distribution=partition.share_out_of_distribution,
        num_informative=sum(client.constant is not None and client.constant < INFORMATIVE for client in clients),
        clients=clients,
        warnings=(*leftovers(partition, data), *shortages(partition)),
    )


def overlap(first: Sequence[int], second: Sequence[int]) -> float | None:
    """Return the share of one mix of labels that the other covers: Σ min(p, q), 1 for equal mixes."""
    if not sum(first) or not sum(second):
        return None
    p, q = (np.asarray(counts) / sum(counts) for counts in (first, second))
    return float(np.minimum(p, q).sum())


def _summarise_client(number: int, partition: Partition, data: DataSet) -> ClientSummary:
    own: ClientIndices = partition.clients[number]
    target = partition.targets[number]
    train_labels: Indices = data.train.labels.numpy()
    train = partition.labels_at(number, train_labels[own.train])
    validation = partition.labels_at(target, train_labels[own.validation])
    test = partition.labels_at(target, data.test.labels.numpy()[own.test])
    trained = _counts(train, data.num_classes)
    targeted = _counts(np.concatenate([validation, test]), data.num_classes)
    return ClientSummary(
        group=None if partition.groups is None else partition.groups[number],
        target=target,
        train=len(own.train),
        validation=len(own.validation),
        test=len(own.test),
        train_labels=trained,
        target_labels=targeted,
        overlap=overlap(trained, targeted),
        constant=constant_accuracy(train if target == number else validation, test),
    )


def _counts(labels: Indices, num_classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(labels, minlength=num_classes).tolist())
