"""The embedded set is what it says, and is the same in every run."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfomo.datasets.bundled import DataSet, fingerprint, load_digits, stratified_division


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load_digits()


def test_digits_are_images_between_zero_and_one(digits: DataSet) -> None:
    assert digits.name == "digits"
    assert digits.num_classes == 10
    assert len(digits.train) + len(digits.test) == 1797
    for part in (digits.train, digits.test):
        assert part.inputs.shape[1:] == (1, 8, 8)
        assert part.inputs.dtype == torch.float32
        assert part.labels.dtype == torch.int64
        assert part.inputs.min() == 0
        assert part.inputs.max() == 1


def test_every_digit_has_a_fifth_in_the_test_part(digits: DataSet) -> None:
    tested, trained = digits.test.labels.bincount(), digits.train.labels.bincount()
    assert ((tested / (tested + trained) - 0.2).abs() < 0.005).all()


def test_no_image_is_both_trained_and_tested(digits: DataSet) -> None:
    def images(part: torch.Tensor) -> set[bytes]:
        return {image.numpy().tobytes() for image in part}

    assert not images(digits.train.inputs) & images(digits.test.inputs)


def test_fingerprint_stays_and_notices_every_change(digits: DataSet) -> None:
    assert load_digits().fingerprint == digits.fingerprint
    assert len(digits.fingerprint) == 64
    changed = digits.test.inputs.clone()
    changed[-1, 0, 7, 7] += 1 / 16
    assert fingerprint(digits.train, dataclasses.replace(digits.test, inputs=changed)) != digits.fingerprint
    relabelled = digits.train.labels.flip(0)
    assert fingerprint(dataclasses.replace(digits.train, labels=relabelled), digits.test) != digits.fingerprint


@given(st.lists(st.integers(0, 3), max_size=50), st.floats(0, 1))
def test_division_takes_the_same_share_of_every_label(values: list[int], fraction: float) -> None:
    labels = np.array(values, dtype=np.int64)
    train, test = stratified_division(labels, fraction)
    assert sorted([*train, *test]) == list(range(len(labels)))
    for label in np.unique(labels):
        assert (labels[test] == label).sum() == round(fraction * (labels == label).sum())
