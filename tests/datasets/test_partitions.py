"""Every split is disjoint, covers what it says, and is decided by its seed alone."""

import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedfomo.datasets.partitions import (
    ClientIndices,
    Indices,
    Partition,
    by_group,
    dirichlet,
    group_of_each_client,
    iid,
    pathological,
    shuffle_targets,
    subsample,
    training_size,
)
from fedfomo.errors import InputError

labels = st.lists(st.integers(0, 4), max_size=60).map(lambda values: np.array(values, dtype=np.int64))
some_labels = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int64))
clients = st.integers(1, 25)
seeds = st.integers(0, 2**32)
alphas = st.floats(1e-300, 1e300)
fractions = st.floats(0.01, 0.99)


def own_training(client: ClientIndices) -> Indices:
    return np.concatenate([client.train, client.validation])


def assert_each_at_most_once(parts: Sequence[Indices], size: int) -> Indices:
    """No index is dealt twice or out of range; return all that were dealt, sorted."""
    dealt = np.sort(np.concatenate(parts))
    assert dealt.dtype == np.int64
    assert len(np.unique(dealt)) == len(dealt)
    assert not len(dealt) or (dealt[0] >= 0 and dealt[-1] < size)
    return dealt


def assert_sound(partition: Partition, num_clients: int, train: Indices, test: Indices) -> tuple[Indices, Indices]:
    """Check what holds for every partition; return the dealt training and test indices."""
    assert len(partition.clients) == num_clients
    assert partition.targets == tuple(range(num_clients))
    splits = [part for client in partition.clients for part in (client.train, client.validation)]
    dealt_train = assert_each_at_most_once(splits, len(train))
    dealt_test = assert_each_at_most_once([client.test for client in partition.clients], len(test))
    return dealt_train, dealt_test


def bits(partition: Partition) -> list[bytes]:
    return [part.tobytes() for own in partition.clients for part in (own.train, own.validation, own.test)]


@given(labels, labels, clients, seeds, fractions)
def test_iid_deals_everything_in_equal_shares(
    train: Indices, test: Indices, num_clients: int, seed: int, fraction: float
) -> None:
    partition = iid(train, test, num_clients, seed, fraction)
    dealt_train, dealt_test = assert_sound(partition, num_clients, train, test)
    assert len(dealt_train) == len(train)
    assert len(dealt_test) == len(test)
    sizes = [len(own_training(client)) for client in partition.clients]
    assert max(sizes) - min(sizes) <= 1
    for client, size in zip(partition.clients, sizes, strict=True):
        assert len(client.train) == training_size(size, fraction)


@given(some_labels, labels, clients, st.data(), seeds)
def test_pathological_gives_few_classes_and_tests_on_them(
    train: Indices, test: Indices, num_clients: int, data: st.DataObject, seed: int
) -> None:
    num_classes = len(np.unique(train))
    per_client = data.draw(st.integers(1, num_classes))
    partition = pathological(train, test, num_clients, per_client, seed)
    dealt_train, dealt_test = assert_sound(partition, num_clients, train, test)
    # A class is dealt out whole or, when there are fewer shards than classes, not at all.
    drawn = set(train[dealt_train].tolist())
    assert len(drawn) == min(num_classes, num_clients * per_client)
    assert len(dealt_train) == np.isin(train, list(drawn)).sum()
    assert len(dealt_test) == np.isin(test, list(drawn)).sum()
    for client in partition.clients:
        assert len(np.unique(train[own_training(client)])) <= per_client


def test_pathological_mirrors_train_in_test() -> None:
    train, test = np.arange(6000) % 10, np.arange(1000) % 10
    partition = pathological(train, test, num_clients=15, classes_per_client=2, seed=0)
    pairs = set[tuple[int, ...]]()
    for client in partition.clients:
        classes = np.unique(train[own_training(client)])
        assert len(classes) == 2
        assert np.array_equal(classes, np.unique(test[client.test]))
        # Three clients share a class: 200 of its 600 training examples each, and a third of its 100 test examples.
        assert [np.sum(train[own_training(client)] == label) for label in classes] == [200, 200]
        assert all(np.sum(test[client.test] == label) in (33, 34) for label in classes)
        pairs.add(tuple(classes.tolist()))
    assert len(pairs) > 5, "classes are drawn at random, not in fixed pairs"


@pytest.mark.parametrize("per_client", [0, 4])
def test_pathological_refuses_impossible_numbers_of_classes(per_client: int) -> None:
    with pytest.raises(InputError, match="give 1 to 3"):
        pathological(np.arange(3), np.arange(3), 2, per_client, seed=0)


@given(some_labels, labels, clients, alphas, seeds)
def test_dirichlet_deals_everything_and_tests_on_what_is_trained(
    train: Indices, test: Indices, num_clients: int, alpha: float, seed: int
) -> None:
    partition = dirichlet(train, test, num_clients, alpha, seed)
    dealt_train, dealt_test = assert_sound(partition, num_clients, train, test)
    assert len(dealt_train) == len(train)
    assert len(dealt_test) == np.isin(test, train).sum()
    for client in partition.clients:
        assert set(test[client.test].tolist()) <= set(train[own_training(client)].tolist())


@given(st.floats(0.05, 100), seeds)
@settings(max_examples=25)
def test_dirichlet_mirrors_train_in_test(alpha: float, seed: int) -> None:
    train, test = np.arange(5000) % 5, np.arange(1000) % 5
    for client in dirichlet(train, test, 8, alpha, seed).clients:
        counts = np.bincount(train[own_training(client)], minlength=5)
        # The test part is a fifth as large; rounding both ends of a share costs one example at most.
        assert np.abs(np.bincount(test[client.test], minlength=5) - counts / 5).max() <= 1


def test_alpha_decides_how_uneven_clients_are() -> None:
    train = np.arange(5000) % 10

    def largest_share(alpha: float) -> float:
        mixes = [
            np.bincount(train[own_training(own)], minlength=10) for own in dirichlet(train, train, 10, alpha, 0).clients
        ]
        return float(np.mean([mix.max() / mix.sum() for mix in mixes if mix.sum()]))

    assert largest_share(0.01) > 0.7 > 0.5 > largest_share(1) > largest_share(1000)
    assert largest_share(1000) < 0.13


@pytest.mark.parametrize("alpha", [0, -1, float("nan"), float("inf")])
def test_dirichlet_refuses_impossible_alphas(alpha: float) -> None:
    with pytest.raises(InputError, match="alpha"):
        dirichlet(np.arange(3), np.arange(3), 2, alpha, seed=0)


@given(labels, labels, st.integers(5, 9), clients, seeds)
def test_groups_are_dealt_to_their_clients(
    train: Indices, test: Indices, num_groups: int, num_clients: int, seed: int
) -> None:
    partition = by_group(train, test, num_groups, num_clients, seed)
    dealt_train, dealt_test = assert_sound(partition, num_clients, train, test)
    assert partition.groups == group_of_each_client(num_clients, num_groups)
    # With fewer clients than groups, the groups without a client are left out and all others are dealt out whole.
    assert len(dealt_train) == np.isin(train, partition.groups).sum()
    assert len(dealt_test) == np.isin(test, partition.groups).sum()
    for group in set(partition.groups):
        members = [own for own, of in zip(partition.clients, partition.groups, strict=True) if of == group]
        for held in ([len(own_training(own)) for own in members], [len(own.test) for own in members]):
            assert max(held) - min(held) <= 1
    for client, group in zip(partition.clients, partition.groups, strict=True):
        assert (train[own_training(client)] == group).all()
        assert (test[client.test] == group).all()


@pytest.mark.parametrize(
    ("num_clients", "num_groups", "sizes"),
    [
        (15, 2, [8, 7]),
        (15, 4, [4, 4, 4, 3]),
        (15, 5, [3] * 5),
        (15, 10, [2] * 5 + [1] * 5),
        (3, 5, [1, 1, 1, 0, 0]),
    ],
)
def test_clients_are_spread_evenly_over_groups(num_clients: int, num_groups: int, sizes: list[int]) -> None:
    groups = group_of_each_client(num_clients, num_groups)
    assert [groups.count(group) for group in range(num_groups)] == sizes
    assert list(groups) == sorted(groups)


@pytest.mark.parametrize(
    ("examples", "train", "validation"),
    [
        *[(3333, 2666, 667), (3334, 2667, 667), (500, 400, 100), (4000, 3200, 800), (600, 480, 120)],
        *[(0, 0, 0), (1, 1, 0), (2, 1, 1), (3, 2, 1), (5, 4, 1)],
    ],
)
def test_sizes_of_train_and_validation(examples: int, train: int, validation: int) -> None:
    (client,) = iid(np.zeros(examples, dtype=np.int64), np.zeros(0, dtype=np.int64), 1, seed=0).clients
    assert (len(client.train), len(client.validation)) == (train, validation)


@given(st.integers(2, 500), fractions)
def test_two_examples_are_enough_for_both_splits(examples: int, fraction: float) -> None:
    size = training_size(examples, fraction)
    assert 1 <= size <= examples - 1
    assert abs(size - (1 - fraction) * examples) <= 1


@pytest.mark.parametrize("fraction", [0, 1, -0.2, float("nan")])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        training_size(10, fraction)


@given(labels, labels, clients, seeds, seeds)
def test_shuffled_targets_keep_pairs_together(
    train: Indices, test: Indices, num_clients: int, seed: int, shuffle_seed: int
) -> None:
    before = by_group(train, test, 5, num_clients, seed)
    after = shuffle_targets(before, shuffle_seed)
    assert after.groups == before.groups
    assert sorted(after.targets) == list(range(num_clients))
    for client, target in enumerate(after.targets):
        assert after.clients[client].train is before.clients[client].train
        assert after.clients[client].validation is before.clients[target].validation
        assert after.clients[client].test is before.clients[target].test
    trained = np.concatenate([client.train for client in after.clients])
    assert not np.isin(np.concatenate([client.validation for client in after.clients]), trained).any()


def test_shuffling_twice_remembers_whose_targets_they_were() -> None:
    before = iid(np.zeros(40, dtype=np.int64), np.zeros(40, dtype=np.int64), 8, seed=0)
    after = shuffle_targets(shuffle_targets(before, 1), 2)
    for client, target in zip(after.clients, after.targets, strict=True):
        assert client.test is before.clients[target].test


def test_share_out_of_distribution_counts_groups() -> None:
    nothing = ClientIndices(*[np.zeros(0, dtype=np.int64)] * 3)
    assert Partition((nothing,) * 4, (0, 0, 1, 1), (1, 0, 3, 2)).share_out_of_distribution == 0
    assert Partition((nothing,) * 4, (0, 0, 1, 1), (0, 2, 1, 3)).share_out_of_distribution == 0.5
    assert Partition((nothing,) * 4, None, (0, 2, 1, 3)).share_out_of_distribution == 0.5


def partitions(seed: int) -> list[Partition]:
    train, test = np.arange(400) % 4, np.arange(200) % 4
    grouped = by_group(train, test, 4, 10, seed)
    return [
        iid(train, test, 10, seed),
        pathological(train, test, 10, 2, seed),
        dirichlet(train, test, 10, 0.5, seed),
        grouped,
        shuffle_targets(grouped, seed),
    ]


@given(seeds, seeds)
@settings(max_examples=20)
def test_same_seed_same_bits_other_seed_other_bits(seed: int, other: int) -> None:
    for first, again, changed in zip(partitions(seed), partitions(seed), partitions(other), strict=True):
        assert bits(first) == bits(again)
        assert (bits(first) == bits(changed)) == (seed == other)


def test_no_clients_are_refused() -> None:
    few = np.arange(3)
    for build in (
        lambda: iid(few, few, 0, 0),
        lambda: pathological(few, few, 0, 1, 0),
        lambda: dirichlet(few, few, 0, 1.0, 0),
        lambda: by_group(few, few, 3, 0, 0),
        lambda: by_group(few, few, 0, 3, 0),
    ):
        with pytest.raises(InputError, match="give at least 1"):
            build()


def test_ten_thousand_clients_take_less_than_five_seconds() -> None:
    train, test = np.arange(50_000) % 10, np.arange(10_000) % 10
    for build in (
        lambda: iid(train, test, 10_000, 0),
        lambda: pathological(train, test, 10_000, 2, 0),
        lambda: dirichlet(train, test, 10_000, 0.1, 0),
        lambda: by_group(train, test, 10, 10_000, 0),
    ):
        start = time.perf_counter()
        partition = build()
        assert time.perf_counter() - start < 5
        assert sum(len(own_training(client)) for client in partition.clients) == 50_000


@given(st.integers(1, 12), st.integers(0, 99), st.floats(0.01, 1))
def test_clients_that_keep_a_share_hold_less_of_every_label_and_nothing_new(
    clients: int, seed: int, fraction: float
) -> None:
    labels = np.arange(400) % 5
    whole = iid(labels, labels, clients, seed)
    kept = subsample(whole, labels, fraction, seed)
    for before, after in zip(whole.clients, kept.clients, strict=True):
        assert after.test is before.test
        for some, everything in ((after.train, before.train), (after.validation, before.validation)):
            assert np.isin(some, everything).all()
            assert (np.diff(some) > 0).all()
            for label in range(5):
                due = fraction * np.count_nonzero(labels[everything] == label)
                assert abs(np.count_nonzero(labels[some] == label) - due) < 1 + 1e-6


def test_a_share_of_one_keeps_everything() -> None:
    labels = np.arange(100) % 5
    whole = iid(labels, labels, 3, 0)
    for before, after in zip(whole.clients, subsample(whole, labels, 1.0, 0).clients, strict=True):
        assert after.train.tolist() == before.train.tolist()
        assert after.validation.tolist() == before.validation.tolist()
    with pytest.raises(InputError, match="data fraction is 0"):
        subsample(whole, labels, 0, 0)
