"""The scenario card: what there is to know of a data set spread over clients, before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.latent_groups import PUBLISHED_NUMBERS
from fedfomo.datasets.partitions import ClientIndices, Indices, Partition
from fedfomo.datasets.scenarios import label_distances, shortages, spread

PUBLISHED_EMD: dict[str, dict[int, float]] = {
    "cifar10": {2: 1.05, 3: 1.41, 4: 1.28, 5: 2.80, 10: 2.70},
    "cifar100": {2: 1.58, 3: 1.96, 4: 2.21, 5: 2.41, 10: 2.71},
}
"""The label distances in the paper's tables, by number of groups (D), as its authors count them."""


@dataclass(frozen=True)
class ClientCard:
    """What one client holds."""

    group: int | None  # the distribution behind its training examples
    target: int  # the client whose validation and test examples it holds
    train: int  # numbers of examples
    validation: int
    test: int
    train_labels: tuple[int, ...]  # how many of each
    target_labels: tuple[int, ...]  # likewise, of validation and test examples together
    overlap: float | None  # of the two mixes of labels, from 0 to 1; none where the client lacks either


@dataclass(frozen=True)
class Card:
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
    clients: tuple[ClientCard, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the card as plain values."""
        return asdict(self)


def make_card(config: ScenarioConfig, data: DataSet, seed: int) -> Card:
    """Spread a data set over clients as a run with this seed would, and describe the outcome."""
    partition = spread(config, data, seed)
    clients = tuple(_client_card(number, partition, data) for number in range(len(partition.clients)))
    known = [client.overlap for client in clients if client.overlap is not None]
    emd_l1, emd_official = label_distances(partition, data)
    published = PUBLISHED_EMD.get(data.name, {}).get(config.distributions)
    return Card(
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
        emd_published=published if config.has_groups and not config.share_fraction else None,
        mean_overlap=fmean(known) if known else None,
        share_out_of_distribution=partition.share_out_of_distribution,
        clients=clients,
        warnings=tuple(shortages(partition)),
    )


def overlap(first: Sequence[int], second: Sequence[int]) -> float | None:
    """Return the share of one mix of labels that the other covers: Σ min(p, q), 1 for equal mixes."""
    if not sum(first) or not sum(second):
        return None
    p, q = (np.asarray(counts) / sum(counts) for counts in (first, second))
    return float(np.minimum(p, q).sum())


def distance_table(data: DataSet, clients: int, seed: int) -> str:
    """Write a Markdown table of the label distances of latent distributions, ours beside the paper's."""
    lines = [
        "| D | groups | images in each group | EMD, Σ\\|p − q\\| | EMD as the authors count it | paper |",
        "| ---: | --- | --- | ---: | ---: | ---: |",
    ]
    wanted = [ScenarioConfig(clients=clients, distributions=number) for number in PUBLISHED_NUMBERS]
    if data.num_classes in PUBLISHED_NUMBERS:
        wanted.append(replace(wanted[-1], distributions=data.num_classes, representation="classes"))
    for config in wanted:
        card = make_card(config, data, seed)
        sizes = ", ".join(f"{size:,}" for size in _group_sizes(card))
        kind = "classes" if config.representation == "classes" else "latent"
        paper = "" if card.emd_published is None else f"{card.emd_published:.2f}"
        lines.append(
            f"| {config.distributions} | {kind} | {sizes} | {card.emd_l1:.2f} | {card.emd_official:.2f} | {paper} |"
        )
    return "\n".join(lines)


def _client_card(number: int, partition: Partition, data: DataSet) -> ClientCard:
    own: ClientIndices = partition.clients[number]
    train_labels: Indices = data.train.labels.numpy()
    test_labels: Indices = data.test.labels.numpy()
    trained = _counts(train_labels[own.train], data.num_classes)
    targeted = _counts(np.concatenate([train_labels[own.validation], test_labels[own.test]]), data.num_classes)
    return ClientCard(
        group=None if partition.groups is None else partition.groups[number],
        target=partition.targets[number],
        train=len(own.train),
        validation=len(own.validation),
        test=len(own.test),
        train_labels=trained,
        target_labels=targeted,
        overlap=overlap(trained, targeted),
    )


def _counts(labels: Indices, num_classes: int) -> tuple[int, ...]:
    return tuple(np.bincount(labels, minlength=num_classes).tolist())


def _group_sizes(card: Card) -> list[int]:
    sizes: dict[int, int] = {}
    for client in card.clients:
        if client.group is not None:
            sizes[client.group] = sizes.get(client.group, 0) + client.train + client.validation + client.test
    return [sizes[group] for group in sorted(sizes)]
