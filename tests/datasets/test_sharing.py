"""A shared pool comes from what clients train on, reaches everybody once, and never meets validation or test."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfomo.datasets.bundled import load_digits
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.partitions import (
    Indices,
    Partition,
    by_group,
    dirichlet,
    iid,
    pool_training_data,
    shuffle_targets,
)
from fedfomo.datasets.scenarios import build_scenario
from fedfomo.errors import InputError

labels = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(lambda values: np.array(values, dtype=np.int64))
fractions = st.floats(0, 1)


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Partition, Indices]:
    train, clients, seed = draw(labels), draw(st.integers(1, 12)), draw(st.integers(0, 99))
    kind = draw(st.sampled_from(["iid", "dirichlet", "latent"]))
    if kind == "iid":
        partition = iid(train, train, clients, seed)
    elif kind == "dirichlet":
        partition = dirichlet(train, train, clients, 0.3, seed)
    else:
        partition = by_group(train, train, 5, clients, seed)
    return (shuffle_targets(partition, seed) if draw(st.booleans()) else partition), train


@given(partitions(), fractions, st.integers(0, 99))
def test_everybody_trains_on_its_own_and_on_the_pool_once(
    made: tuple[Partition, Indices], fraction: float, seed: int
) -> None:
    before, train = made
    after = pool_training_data(before, train, fraction, seed)
    assert (after.groups, after.targets) == (before.groups, before.targets)
    everything = np.concatenate([client.train for client in before.clients])
    assert len(np.unique(after.pool)) == len(after.pool)
    assert np.isin(after.pool, everything).all()
    for own, shared in zip(before.clients, after.clients, strict=True):
        assert shared.validation is own.validation
        assert shared.test is own.test
        assert shared.train.dtype == np.int64
        assert shared.train.tolist() == sorted({*own.train.tolist(), *after.pool.tolist()})
    # Nobody validates on what anybody trains on, also where targets are shuffled.
    trained = np.concatenate([client.train for client in after.clients])
    assert not np.isin(np.concatenate([client.validation for client in after.clients]), trained).any()


@given(partitions(), fractions, st.integers(0, 99))
def test_each_client_gives_its_share_of_every_label(
    made: tuple[Partition, Indices], fraction: float, seed: int
) -> None:
    before, train = made
    pool = pool_training_data(before, train, fraction, seed).pool
    for own in before.clients:
        gift = np.intersect1d(own.train, pool)
        assert abs(len(gift) - fraction * len(own.train)) <= 1
        held, gave = np.bincount(train[own.train], minlength=5), np.bincount(train[gift], minlength=5)
        assert np.abs(gave - fraction * held).max() <= 1


@given(partitions(), st.integers(0, 99))
def test_nothing_and_everything_can_be_shared(made: tuple[Partition, Indices], seed: int) -> None:
    before, train = made
    assert len(pool_training_data(before, train, 0.0, seed).pool) == 0
    everything = np.sort(np.concatenate([client.train for client in before.clients]))
    for client in pool_training_data(before, train, 1.0, seed).clients:
        np.testing.assert_array_equal(client.train, everything)


def test_small_shares_add_up() -> None:
    # Eight examples a client: a twentieth of that is less than one, but not of all clients together.
    train = np.arange(5000) % 10
    pool = pool_training_data(iid(train, train, 500, 0), train, 0.05, 0).pool
    assert len(pool) == pytest.approx(200, abs=50)


def test_the_seed_decides() -> None:
    train = np.arange(500) % 10
    partition = iid(train, train, 5, 0)
    first, again, other = (pool_training_data(partition, train, 0.2, seed).pool for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan")])
def test_impossible_fractions_are_refused(fraction: float) -> None:
    train = np.arange(9)
    with pytest.raises(InputError, match="from 0 to 1"):
        pool_training_data(iid(train, train, 3, 0), train, fraction, 0)
    with pytest.raises(InputError, match="share_fraction is"):
        ScenarioConfig(share_fraction=fraction)


@pytest.mark.parametrize("scenario", ["latent", "ood", "pathological"])
def test_any_scenario_can_share(scenario: str) -> None:
    digits = load_digits()
    apart = build_scenario(ScenarioConfig(scenario=scenario), digits, seed=0)
    together = build_scenario(ScenarioConfig(scenario=scenario, share_fraction=0.05), digits, seed=0)
    assert len(together.partition.pool) == pytest.approx(57.5, abs=8)
    assert together.emd_l1 < apart.emd_l1, "sharing makes clients more alike"
    for indices, client in zip(together.partition.clients, together.clients, strict=True):
        np.testing.assert_array_equal(client.train.labels, digits.train.labels[indices.train])


def test_ten_thousand_clients_share_in_less_than_five_seconds() -> None:
    train, test = np.arange(50_000) % 10, np.arange(10_000) % 10
    partition = iid(train, test, 10_000, 0)
    start = time.perf_counter()
    assert len(pool_training_data(partition, train, 0.05, 0).pool) == pytest.approx(2000, abs=150)
    assert time.perf_counter() - start < 5
