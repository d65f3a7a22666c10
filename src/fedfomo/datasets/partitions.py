"""Ways to spread examples over clients: pure functions from labels and a seed to indices.

Every function deals each example to at most one client, keeps the set's own training and test parts apart,
and splits each client's training examples once into what it trains on and what it validates on. Only
`pool_training_data` lets several clients train on an example, and nobody ever validates on what anybody trains on.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from fedfomo.core.rng import numpy_stream
from fedfomo.errors import InputError

Indices = npt.NDArray[np.int64]

NOBODY = -1


@dataclass(frozen=True)
class ClientIndices:
    """One client's examples: `train` and `validation` index the set's training part, `test` its test part."""

    train: Indices
    validation: Indices
    test: Indices


@dataclass(frozen=True)
class Partition:
    """Who holds which examples."""

    clients: tuple[ClientIndices, ...]
    groups: tuple[int, ...] | None  # the distribution behind each client's training examples
    targets: tuple[int, ...]  # whose (validation, test) pair each client holds
    pool: Indices = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # what all clients train on
    label_maps: tuple[Indices, ...] = ()  # of each group: what the set's labels become; none: they stay

    @property
    def target_groups(self) -> tuple[int, ...] | None:
        """The distribution behind each client's validation and test examples."""
        groups = self.groups
        return None if groups is None else tuple(groups[target] for target in self.targets)

    def labels_at(self, owner: int, labels: Indices) -> Indices:
        """Return labels of the set as they are among the clients of a client's group."""
        return self.label_maps[self.groups[owner]][labels] if self.groups and self.label_maps else labels

    @property
    def share_out_of_distribution(self) -> float:
        """Return the share of clients whose target has another origin than their training examples."""
        origins = self.groups if self.groups is not None else range(len(self.clients))
        moved = [origins[client] != origins[target] for client, target in enumerate(self.targets)]
        return sum(moved) / len(moved)


def iid(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    seed: int,
    validation_fraction: float = 0.2,
) -> Partition:
    """Deal all examples at random, in equal shares."""
    everybody = _clients(num_clients)
    train, test = _nobodys(train_labels), _nobodys(test_labels)
    _deal(train, np.arange(len(train)), everybody, numpy_stream(seed, "iid", "train"))
    _deal(test, np.arange(len(test)), everybody, numpy_stream(seed, "iid", "test"))
    return _partition(train, test, num_clients, seed, validation_fraction)


def pathological(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    classes_per_client: int,
    seed: int,
    validation_fraction: float = 0.2,
) -> Partition:
    """Cut every class into equal shards and give each client shards of a few classes (McMahan et al., 2017).

    Each client tests on the classes it trains on. Classes that no client drew are left out.
    """
    everybody = _clients(num_clients)
    classes = np.unique(train_labels)
    if not 1 <= classes_per_client <= len(classes):
        raise InputError(f"classes_per_client is {classes_per_client}, of {len(classes)}: give 1 to {len(classes)}")
    drawn = _draw_classes(len(classes), num_clients, classes_per_client, numpy_stream(seed, "class draw"))
    train, test = _nobodys(train_labels), _nobodys(test_labels)
    for number, label in enumerate(classes.tolist()):
        holders = everybody[(drawn == number).any(axis=1)]
        for owners, labels, part in ((train, train_labels, "train"), (test, test_labels, "test")):
            _deal(owners, np.flatnonzero(labels == label), holders, numpy_stream(seed, "shards", part, label))
    return _partition(train, test, num_clients, seed, validation_fraction)


def dirichlet(
    train_labels: Indices,
    test_labels: Indices,
    num_clients: int,
    alpha: float,
    seed: int,
    validation_fraction: float = 0.2,
) -> Partition:
    """Spread every class over the clients in proportions drawn from Dirichlet(alpha).

    A client's share of a class in the test part follows its share in the training part. A test class that the
    training part lacks is left out.
    """
    everybody = _clients(num_clients)
    if not (math.isfinite(alpha) and alpha > 0):
        raise InputError(f"alpha is {alpha}: give a finite number above 0")
    # Beyond these bounds the proportions do not change any more, but their arithmetic overflows.
    concentration = np.full(num_clients, min(max(alpha, 1e-6), 1e6))
    train, test = _nobodys(train_labels), _nobodys(test_labels)
    for label in np.unique(train_labels).tolist():
        in_train, in_test = np.flatnonzero(train_labels == label), np.flatnonzero(test_labels == label)
        proportions = numpy_stream(seed, "proportions", label).dirichlet(concentration)
        counts = _apportion(proportions, len(in_train))
        train[numpy_stream(seed, "dirichlet", "train", label).permutation(in_train)] = everybody.repeat(counts)
        # Follow the counts that came out, so that nobody is tested on a class it holds no example of.
        counts = _apportion(counts, len(in_test))
        test[numpy_stream(seed, "dirichlet", "test", label).permutation(in_test)] = everybody.repeat(counts)
    return _partition(train, test, num_clients, seed, validation_fraction)


def by_group(
    train_groups: Indices,
    test_groups: Indices,
    num_groups: int,
    num_clients: int,
    seed: int,
    validation_fraction: float = 0.2,
) -> Partition:
    """Assign clients evenly to groups of examples, and deal each group to its clients at random.

    With fewer clients than groups the last groups are left out.
    """
    everybody = _clients(num_clients)
    groups = group_of_each_client(num_clients, num_groups)
    train, test = _nobodys(train_groups), _nobodys(test_groups)
    for group in range(num_groups):
        members = everybody[np.equal(groups, group)]
        for owners, origins, part in ((train, train_groups, "train"), (test, test_groups, "test")):
            _deal(owners, np.flatnonzero(origins == group), members, numpy_stream(seed, "group", part, group))
    return replace(_partition(train, test, num_clients, seed, validation_fraction), groups=groups)


def group_of_each_client(num_clients: int, num_groups: int) -> tuple[int, ...]:
    """Give every group the same number of clients, the first groups one more; neighbours share a group."""
    if num_groups < 1:
        raise InputError(f"{num_groups} groups: give at least 1")
    return tuple(sorted(client % num_groups for client in range(num_clients)))


def shuffle_targets(partition: Partition, seed: int) -> Partition:
    """Permute the (validation, test) pairs among clients, where one may keep its own; training data stay."""
    order: list[int] = numpy_stream(seed, "targets").permutation(len(partition.clients)).tolist()
    clients = tuple(
        ClientIndices(own.train, partition.clients[other].validation, partition.clients[other].test)
        for own, other in zip(partition.clients, order, strict=True)
    )
    return replace(partition, clients=clients, targets=tuple(partition.targets[other] for other in order))


def pool_training_data(partition: Partition, train_labels: Indices, fraction: float, seed: int) -> Partition:
    """Let every client give a share of its training examples to a pool on which all clients train.

    This is the data sharing of Zhao et al. (2018) in the form that FedFomo is compared with: the pool comes from the
    clients themselves. What clients validate and test on is left alone.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"share fraction is {fraction}: give a number from 0 to 1")
    rng = numpy_stream(seed, "sharing")
    given = [_draw_stratified(own.train, train_labels[own.train], fraction, rng) for own in partition.clients]
    pool = np.concatenate(given)
    givers = np.arange(len(given)).repeat([len(gift) for gift in given])
    clients = tuple(
        replace(own, train=np.sort(np.concatenate([own.train, pool[givers != number]])))
        for number, own in enumerate(partition.clients)
    )
    return replace(partition, clients=clients, pool=np.sort(pool))


def subsample(partition: Partition, train_labels: Indices, fraction: float, seed: int) -> Partition:
    """Let every client keep a share of what it trains and of what it validates on; test examples stay.

    The share is taken of every label alike, so that clients hold less and are as different as before.
    """
    if not 0 < fraction <= 1:
        raise InputError(f"data fraction is {fraction}: give a number above 0 and at most 1")
    rng = numpy_stream(seed, "keeping")

    def some(examples: Indices) -> Indices:
        return np.sort(_draw_stratified(examples, train_labels[examples], fraction, rng))

    clients = tuple(replace(own, train=some(own.train), validation=some(own.validation)) for own in partition.clients)
    return replace(partition, clients=clients)


def training_size(num_examples: int, validation_fraction: float) -> int:
    """Return how many of a client's examples it trains on; with two or more, both splits get at least one."""
    if not 0 < validation_fraction < 1:
        raise InputError(f"validation fraction is {validation_fraction}: give a number between 0 and 1")
    if num_examples < 2:
        return num_examples
    return min(max(round((1 - validation_fraction) * num_examples), 1), num_examples - 1)


def _clients(num_clients: int) -> Indices:
    if num_clients < 1:
        raise InputError(f"{num_clients} clients: give at least 1")
    return np.arange(num_clients)


def _nobodys(labels: Indices) -> Indices:
    """Return an owner for every example: nobody so far."""
    return np.full(len(labels), NOBODY)


def _deal(owners: Indices, examples: Indices, clients: Indices, rng: np.random.Generator) -> None:
    """Deal examples at random, if anybody is there to take them; shares differ by one at most."""
    if len(clients):
        owners[rng.permutation(examples)] = np.resize(clients, len(examples))


def _draw_stratified(examples: Indices, labels: Indices, fraction: float, rng: np.random.Generator) -> Indices:
    """Draw a share of the examples; of every label it is that share too, rounded up or down."""
    order = np.lexsort((rng.random(len(examples)), labels))
    # Along the examples in order of their labels, take one whenever the share that is due passes a whole number.
    # The random start makes the expected number exact, also where the share of a client is less than one example.
    due = np.floor(fraction * np.arange(len(examples) + 1) + rng.random())
    return examples[order[np.diff(due) > 0]]


def _apportion(proportions: npt.NDArray[np.float64] | Indices, total: int) -> Indices:
    """Return whole numbers that follow the proportions and add up to the total."""
    cumulated = np.cumsum(proportions)
    cuts = np.rint(cumulated / cumulated[-1] * total).astype(np.int64)
    return np.diff(cuts, prepend=0)


def _draw_classes(num_classes: int, num_clients: int, per_client: int, rng: np.random.Generator) -> Indices:
    """Draw distinct classes for every client such that all classes are drawn equally often (or once more)."""
    shards, more = divmod(num_clients * per_client, num_classes)
    left = np.full(num_classes, shards)
    left[rng.permutation(num_classes)[:more]] += 1
    drawn = np.empty((num_clients, per_client), dtype=np.int64)
    waits = rng.exponential(size=(num_clients, num_classes))
    with np.errstate(divide="ignore", invalid="ignore"):
        for client, wait in enumerate(waits):
            # The shortest waits, scaled so, draw classes without replacement by the shards that they have left;
            # a class with as many shards as there are clients left must go to each of them.
            wait /= left
            wait[left == num_clients - client] = -1
            drawn[client] = np.argsort(wait)[:per_client]
            left[drawn[client]] -= 1
    return drawn


def _partition(
    train_owners: Indices, test_owners: Indices, num_clients: int, seed: int, validation_fraction: float
) -> Partition:
    """Hand every client its examples, and split its training examples once into training and validation."""
    rng = numpy_stream(seed, "validation")
    clients: list[ClientIndices] = []
    train, test = _by_owner(train_owners, num_clients), _by_owner(test_owners, num_clients)
    for own, own_test in zip(train, test, strict=True):
        shuffled = rng.permutation(own)
        size = training_size(len(own), validation_fraction)
        clients.append(ClientIndices(np.sort(shuffled[:size]), np.sort(shuffled[size:]), own_test))
    return Partition(tuple(clients), groups=None, targets=tuple(range(num_clients)))


def _by_owner(owners: Indices, num_clients: int) -> list[Indices]:
    """Return the sorted examples of every client."""
    order = np.argsort(owners, kind="stable")
    cuts = np.searchsorted(owners[order], np.arange(num_clients + 1))
    return [order[start:stop] for start, stop in itertools.pairwise(cuts.tolist())]
