"""Examples: taking, cutting and shuffling them."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from fedfomo.core.data import Examples
from fedfomo.core.given_data import as_examples
from fedfomo.core.rng import stream
from fedfomo.errors import InputError


def numbered(size: int) -> Examples:
    return Examples(torch.arange(size).view(size, 1).float(), torch.arange(size))


def test_inputs_and_labels_go_together() -> None:
    taken = numbered(5).take(torch.tensor([3, 0, 3]))
    assert taken.inputs[:, 0].tolist() == [3.0, 0.0, 3.0]
    assert taken.labels.tolist() == [3, 0, 3]
    assert len(taken) == 3


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_whole_numbers_of_any_width_are_labels(kind: torch.dtype) -> None:
    assert as_examples((torch.zeros(2, 1), torch.tensor([1, 0], dtype=kind))).labels.dtype == torch.int64


@pytest.mark.parametrize("kind", [torch.float32, torch.bool, torch.uint8])
def test_other_labels_stay_as_they_are(kind: torch.dtype) -> None:
    assert as_examples((torch.zeros(2, 1), torch.tensor([1, 0], dtype=kind))).labels.dtype == kind


def test_one_label_per_input_is_demanded() -> None:
    with pytest.raises(InputError, match="2 inputs but 3 labels: give one label per input"):
        Examples(torch.zeros(2, 1), torch.zeros(3))


@given(st.integers(0, 20), st.integers(1, 7))
def test_batches_cover_everything_in_order_and_only_the_last_is_short(size: int, batch: int) -> None:
    batches = list(numbered(size).batches(batch))
    assert [label for b in batches for label in b.labels.tolist()] == list(range(size))
    assert all(len(b) == batch for b in batches[:-1])
    assert len(batches) == -(-size // batch)


@given(st.integers(0, 20), st.integers(1, 7), st.integers(0, 100))
def test_shuffled_batches_cover_everything_once(size: int, batch: int, seed: int) -> None:
    batches = [b for b in numbered(size).shuffled_batches(batch, stream(seed)) if len(b)]
    assert sorted(label for b in batches for label in b.labels.tolist()) == list(range(size))
    assert all(len(b) == batch for b in batches[:-1])
    assert all(torch.equal(b.inputs[:, 0].long(), b.labels) for b in batches)


def test_no_examples_make_no_batches() -> None:
    assert list(numbered(0).batches(3)) == []


def test_every_pass_is_shuffled_anew_from_the_same_stream() -> None:
    rng = stream(0)
    first, second = ([b.labels.tolist() for b in numbered(20).shuffled_batches(4, rng)] for _ in range(2))
    assert first != second
    assert [b.labels.tolist() for b in numbered(20).shuffled_batches(4, stream(0))] == first


def test_examples_tensors_and_datasets_are_read_alike() -> None:
    examples = numbered(4)
    assert as_examples(examples) is examples
    pair = as_examples((examples.inputs, examples.labels))
    dataset = as_examples(TensorDataset(examples.inputs, examples.labels))
    for read in (pair, dataset):
        assert torch.equal(read.inputs, examples.inputs)
        assert torch.equal(read.labels, examples.labels)


def test_plain_labels_become_tensors() -> None:
    read = as_examples([(torch.zeros(2), 1), (torch.ones(2), 0)])  # type: ignore[arg-type]
    assert read.labels.tolist() == [1, 0]
    assert read.inputs.shape == (2, 2)


def test_an_endless_dataset_is_refused() -> None:
    class Endless(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Tensor]:
            yield from ()

    with pytest.raises(InputError, match="Endless has no length: give"):
        as_examples(Endless())


def test_an_empty_dataset_is_refused_and_empty_tensors_are_not() -> None:
    with pytest.raises(InputError, match="an empty list says nothing of its shapes"):
        as_examples([])  # type: ignore[arg-type]
    assert len(as_examples((torch.empty(0, 2), torch.empty(0)))) == 0
