"""Scenarios: a data set spread over clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fedfomo.data.config import ScenarioConfig
from fedfomo.data.heterogeneity import emd_l1, emd_official, label_histogram, mean_over_clients
from fedfomo.data.latent import latent_groups, network_representation, pixel_representation
from fedfomo.data.partitions import (
    ClientIndices,
    Indices,
    Partition,
    by_group,
    dirichlet,
    iid,
    pathological,
    shuffle_targets,
)
from fedfomo.data.sets import DataSet
from fedfomo.errors import InputError
from fedfomo.examples import ClientData


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
    partition = _spread(config, data, seed)
    if not any(len(client.train) for client in partition.clients):
        raise InputError(f"no client has a training example of '{data.name}': give more clients or fewer groups")
    if config.has_shuffled_targets:
        partition = shuffle_targets(partition, seed)
    labels = _labels(data.train.labels)
    total = label_histogram(labels, data.num_classes)
    histograms = [label_histogram(labels[client.train], data.num_classes) for client in partition.clients]
    return Scenario(
        clients=tuple(_take(data, client) for client in partition.clients),
        partition=partition,
        emd_l1=mean_over_clients(emd_l1, histograms, total),
        emd_official=mean_over_clients(emd_official, histograms, total),
        warnings=tuple(_shortages(partition.clients)),
    )


def _spread(config: ScenarioConfig, data: DataSet, seed: int) -> Partition:
    train, test = _labels(data.train.labels), _labels(data.test.labels)
    clients, fraction = config.clients, config.validation_fraction
    if config.scenario == "iid":
        return iid(train, test, clients, seed, fraction)
    if config.scenario == "pathological":
        return pathological(train, test, clients, config.classes_per_client, seed, fraction)
    if config.scenario == "dirichlet":
        return dirichlet(train, test, clients, config.alpha, seed, fraction)
    represent = network_representation if config.representation == "network" else pixel_representation
    # Groups belong to the data set, as in the paper: the run's seed deals them out but does not move them.
    groups = latent_groups(*represent(data), config.distributions)
    return by_group(*groups, config.distributions, clients, seed, fraction)


def _take(data: DataSet, client: ClientIndices) -> ClientData:
    return ClientData(
        train=data.train.take(torch.from_numpy(client.train)),
        validation=data.train.take(torch.from_numpy(client.validation)),
        test=data.test.take(torch.from_numpy(client.test)),
    )


def _shortages(clients: Sequence[ClientIndices]) -> list[str]:
    """Name the clients that hold too little to take full part."""
    notes: list[str] = []
    for number, client in enumerate(clients):
        if len(client.train) < 2 or len(client.validation) == 0:
            holds = f"{_count(len(client.train), 'training')} and {_count(len(client.validation), 'validation')}"
            notes.append(f"client {number} has {holds}: it receives models but contributes none")
        if len(client.test) == 0:
            notes.append(f"client {number} has no test examples: its accuracy cannot be measured")
    return notes


def _count(number: int, kind: str) -> str:
    return f"{number or 'no'} {kind} example{'' if number == 1 else 's'}"


def _labels(labels: torch.Tensor) -> Indices:
    return labels.numpy().astype(np.int64)
