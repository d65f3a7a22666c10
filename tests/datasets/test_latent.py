"""Hidden groups are found in training and test data together, the same ones on every machine."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

from fedfomo.datasets.bundled import DataSet, load_digits
from fedfomo.datasets.latent_groups import (
    Representation,
    group_examples,
    network_representation,
    pixel_representation,
)
from fedfomo.errors import InputError


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load_digits()


def blobs(sizes: list[int], dimensions: int = 20) -> tuple[Representation, np.ndarray]:
    """Return shuffled points around far-apart centres, and which centre each is near."""
    rng = np.random.default_rng(0)
    centre = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    return (10 * np.eye(dimensions)[centre] + rng.normal(size=(len(centre), dimensions))).astype(np.float32), centre


def test_groups_are_found_and_numbered_from_the_largest() -> None:
    points, centre = blobs([20, 50, 30])
    train, test = group_examples(points[:70], points[70:], 3)
    assert (len(train), len(test)) == (70, 30)
    # Centre 1 has most points, then 2, then 0.
    assert np.concatenate([train, test]).tolist() == [{0: 2, 1: 0, 2: 1}[near] for near in centre.tolist()]


def test_equal_groups_are_numbered_by_their_first_member() -> None:
    points, centre = blobs([10, 10, 10])
    groups = np.concatenate(group_examples(points[:20], points[20:], 3))
    assert [groups[centre == near][0] for near in dict.fromkeys(centre.tolist())] == [0, 1, 2]


@pytest.mark.parametrize("num_components", [1, 2, 20, 256])
def test_components_are_capped_by_the_data(num_components: int) -> None:
    points, _ = blobs([6, 5, 4])
    train, test = group_examples(points[:10], points[10:], 2, num_components)
    assert set(np.concatenate([train, test]).tolist()) == {0, 1}


def test_one_group_takes_all_and_one_example_is_enough() -> None:
    points, _ = blobs([6, 5])
    assert group_examples(points, points, 1)[0].tolist() == [0] * 11
    assert group_examples(points[:1], points[:0], 1)[0].tolist() == [0]


def test_one_group_per_example() -> None:
    points, _ = blobs([1, 1, 1])
    assert np.concatenate(group_examples(points[:2], points[2:], 3)).tolist() == [0, 1, 2]


def test_impossible_groups_are_refused_in_words() -> None:
    points, _ = blobs([3, 3])
    with pytest.raises(InputError, match="7 groups of 6 examples"):
        group_examples(points[:3], points[3:], 7)
    with pytest.raises(InputError, match="0 groups"):
        group_examples(points[:3], points[3:], 0)
    with pytest.raises(InputError, match="only 1 of 2 groups"):
        group_examples(np.ones((5, 4), dtype=np.float32), np.ones((5, 4), dtype=np.float32), 2)
    with pytest.raises(InputError, match="not finite"):
        group_examples(np.full((5, 4), np.nan, dtype=np.float32), points[:, :4], 2)


def test_threads_change_nothing(digits: DataSet) -> None:
    before = torch.get_num_threads()
    results: list[tuple[bytes, ...]] = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        with threadpool_limits(limits=threads):
            representation = network_representation(digits)
            assert torch.get_num_threads() == threads, "the caller's setting is restored"
            groups = group_examples(*representation, 5)
        results.append(tuple(part.tobytes() for part in (*representation, *groups)))
    torch.set_num_threads(before)
    assert results[0] == results[1]


def test_representation_depends_on_its_seed_and_leaves_no_trace(digits: DataSet) -> None:
    state = torch.random.get_rng_state()
    first, other = network_representation(digits, seed=1)[0], network_representation(digits, seed=2)[0]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not np.array_equal(first, other)


def test_network_groups_follow_classes_more_closely_than_pixel_groups(digits: DataSet) -> None:
    labels = digits.train.labels.numpy()

    def purity(representation: tuple[Representation, Representation]) -> float:
        """Return the share of examples that carry their group's commonest label."""
        groups, _ = group_examples(*representation, 10)
        return sum(np.bincount(labels[groups == group]).max() for group in range(10)) / len(labels)

    assert purity(network_representation(digits)) > 0.9 > purity(pixel_representation(digits)) > 0.6


def test_pixels_are_taken_as_they_are(digits: DataSet) -> None:
    train, test = pixel_representation(digits)
    assert train.shape == (len(digits.train), 64)
    assert np.array_equal(test[3], digits.test.inputs[3].flatten().numpy())
