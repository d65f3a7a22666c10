"""Scenarios: a data set spread over clients."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fedfomo.core.data import ClientData, Examples, is_enough
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.class_groups import concept_shift, groups_of_classes
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.heterogeneity import emd_l1, emd_official, label_histogram, mean_over_clients
from fedfomo.datasets.latent_groups import (
    Groups,
    group_examples,
    groups_in_file,
    load_groups,
    network_representation,
    numbers_kept,
    pixel_representation,
)
from fedfomo.datasets.partitions import (
    Indices,
    Partition,
    by_group,
    dirichlet,
    iid,
    pathological,
    pool_training_data,
    shuffle_targets,
    subsample,
)
from fedfomo.errors import InputError

SMALL_SET = 10_000
"""Number of images up to which groups are found on the spot where none were made beforehand."""


@dataclass(frozen=True)
class Scenario:
    """Every client's examples, and what there is to know of how they were spread."""

    clients: tuple[ClientData, ...]
    partition: Partition
    emd_l1: float
    emd_official: float
    warnings: tuple[str, ...]


def build_scenario(config: ScenarioConfig, data: DataSet, seed: int) -> Scenario:
    """Spread a data set over clients; the same seed gives the same clients."""
    partition = partition_data(config, data, seed)
    emds = label_distances(partition, data)
    return Scenario(
        clients=tuple(_take(data, partition, number) for number in range(len(partition.clients))),
        partition=partition,
        emd_l1=emds[0],
        emd_official=emds[1],
        warnings=(*leftovers(partition, data), *shortages(partition)),
    )


def partition_data(config: ScenarioConfig, data: DataSet, seed: int) -> Partition:
    """Decide who holds which examples, without touching the images."""
    partition = _split(config, data, seed)
    _require_examples(partition, data, "give more clients or fewer distributions")
    if config.data_fraction < 1:
        partition = subsample(partition, _labels(data.train.labels), config.data_fraction, seed)
        _require_examples(partition, data, f"data_fraction is {config.data_fraction:g}, which leaves none: give more")
    if config.has_shuffled_targets:
        partition = shuffle_targets(partition, seed)
    if config.share_fraction:
        partition = pool_training_data(partition, _labels(data.train.labels), config.share_fraction, seed)
    return partition


def label_distances(partition: Partition, data: DataSet) -> tuple[float, float]:
    """Return how far clients' training labels are from everybody's: Σ|p − q|, and as FedFomo's authors count it."""
    labels = _labels(data.train.labels)
    total = label_histogram(labels, data.num_classes)
    histograms = [
        label_histogram(partition.labels_at(number, labels[client.train]), data.num_classes)
        for number, client in enumerate(partition.clients)
    ]
    return mean_over_clients(emd_l1, histograms, total), mean_over_clients(emd_official, histograms, total)


def leftovers(partition: Partition, data: DataSet) -> list[str]:
    """Say how many training examples nobody holds."""
    held = np.unique(np.concatenate([part for c in partition.clients for part in (c.train, c.validation)]))
    left = len(data.train) - len(held)
    return [f"{left:,} of {len(data.train):,} training examples are left to nobody"] if left else []


def shortages(partition: Partition) -> list[str]:
    """Name the clients that hold too little to take full part."""
    notes: list[str] = []
    for number, client in enumerate(partition.clients):
        if not is_enough(len(client.train), len(client.validation)):
            holds = f"{_count(len(client.train), 'training')} and {_count(len(client.validation), 'validation')}"
            notes.append(f"client {number} has {holds}: it receives models but contributes none")
        if len(client.test) == 0:
            notes.append(f"client {number} has no test examples: its accuracy cannot be measured")
    return notes


def _split(config: ScenarioConfig, data: DataSet, seed: int) -> Partition:
    train, test = _labels(data.train.labels), _labels(data.test.labels)
    clients, fraction = config.clients, config.validation_fraction
    if config.scenario == "iid":
        return iid(train, test, clients, seed, fraction)
    if config.scenario == "pathological":
        return pathological(train, test, clients, _classes_per_client(config, train), seed, fraction)
    if config.scenario == "dirichlet":
        return dirichlet(train, test, clients, config.alpha, seed, fraction)
    if config.scenario == "concept":
        return concept_shift(train, test, config.distributions, clients, seed, fraction)
    if config.scenario == "pairs":
        groups = groups_of_classes(train, test, config.distributions, _classes_per_client(config, train), seed)
        return by_group(*groups, config.distributions, clients, seed, fraction)
    # Groups belong to the data set, as in the paper: the run's seed deals them out but does not move them.
    return by_group(*_groups(config, data), config.distributions, clients, seed, fraction)


def _classes_per_client(config: ScenarioConfig, labels: Indices) -> int:
    return config.classes_per_client or max(1, round(len(np.unique(labels)) / 5))


def _groups(config: ScenarioConfig, data: DataSet) -> tuple[Groups, Groups]:
    """Return the group of every training and every test example."""
    number = config.distributions
    if config.groups is not None:
        return groups_in_file(config.groups, data, number)
    if config.representation == "classes":
        if number != data.num_classes:
            raise InputError(
                f"distributions is {number}, but with representation 'classes' there are as many as '{data.name}' has"
                f" classes: give {data.num_classes} distributions"
            )
        return _labels(data.train.labels), _labels(data.test.labels)
    if config.representation == "network":
        return group_examples(*network_representation(data), number)
    if config.representation in ("auto", "vgg"):
        kept = load_groups(data, number, older=config.representation == "vgg")
        if kept is not None:
            return kept
        if config.representation == "vgg":
            raise InputError(
                f"there are no older groups of '{data.name}' for D = {number}: leave out --representation vgg"
            )
        if len(data.train) + len(data.test) > SMALL_SET:
            raise _not_built(data, number)
    return group_examples(*pixel_representation(data), number)


def _not_built(data: DataSet, number: int) -> InputError:
    known = numbers_kept(data)
    kept = f"latent groups of '{data.name}' are kept for D = {', '.join(map(str, known))}, not {number}"
    missing = kept if known else f"no latent groups of '{data.name}' are kept"
    wanted = " ".join(map(str, sorted({*known, number})))
    return InputError(
        f"{missing}, and it is too large to find them on the spot: give --representation network, or in a clone of"
        f" fedfomo run `python -m experiments.iclr2021.latent_groups build --dataset {data.name} --data FOLDER"
        f" --distributions {wanted}`"
    )


def _require_examples(partition: Partition, data: DataSet, remedy: str) -> None:
    if not any(len(client.train) for client in partition.clients):
        raise InputError(f"no client has a training example of '{data.name}': {remedy}")


def _take(data: DataSet, partition: Partition, number: int) -> ClientData:
    client, target = partition.clients[number], partition.targets[number]

    def some(part: Examples, chosen: Indices, owner: int) -> Examples:
        examples = part.take(torch.from_numpy(chosen))
        if not partition.label_maps:
            return examples
        return Examples(examples.inputs, torch.from_numpy(partition.labels_at(owner, examples.labels.numpy())))

    return ClientData(
        train=some(data.train, client.train, number),
        validation=some(data.train, client.validation, target),
        test=some(data.test, client.test, target),
    )


def _count(number: int, kind: str) -> str:
    return f"{number or 'no'} {kind} example{'' if number == 1 else 's'}"


def _labels(labels: torch.Tensor) -> Indices:
    return labels.numpy().astype(np.int64)
