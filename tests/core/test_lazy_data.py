"""Examples that are read when a batch needs them: the same batches as in memory, and transforms from seeds."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset, WeightedRandomSampler

from fedfomo.core.data import Examples
from fedfomo.core.given_data import as_examples
from fedfomo.core.lazy_data import READ_AT_ONCE, LazyExamples
from fedfomo.core.rng import stream
from fedfomo.errors import InputError


class Squares(Dataset[Any]):
    """Numbers in order, and a count of how often any was read."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reads = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        return torch.tensor([float(index), float(index) ** 2]), index


class Jittered(Squares):
    """Numbers with noise from each of the generators that random transforms draw from."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        noise = [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: S311
        return torch.tensor([float(index), *noise]), index


def memory(size: int) -> Examples:
    x = torch.arange(size).float()
    return Examples(torch.stack([x, x**2], 1), torch.arange(size))


def inputs_of(examples: Examples, seed: int, size: int = 4) -> list[Any]:
    return [batch.inputs.tolist() for batch in examples.shuffled_batches(size, stream(seed))]


def test_any_dataset_gives_the_batches_that_tensors_give() -> None:
    lazy = as_examples(Squares(11))
    assert lazy.is_lazy
    for chosen in (lazy, lazy.take(torch.tensor([7, 2, 9]))):
        same = memory(11).take(chosen.indices) if isinstance(chosen, LazyExamples) else memory(11)
        one, other = list(chosen.batches(4)), list(same.batches(4))
        shuffled = list(chosen.shuffled_batches(4, stream(0))), list(same.shuffled_batches(4, stream(0)))
        for mine, theirs in [*zip(one, other, strict=True), *zip(*shuffled, strict=True)]:
            assert len(mine) == len(theirs)
            assert torch.equal(mine.inputs, theirs.inputs)
            assert torch.equal(mine.labels, theirs.labels)


def test_nothing_is_read_before_a_batch_asks_for_it() -> None:
    source = Squares(1000)
    examples = as_examples(source).take(torch.arange(500))
    batches = examples.shuffled_batches(5, stream(0))
    assert source.reads == 0
    next(batches)
    assert source.reads == 5


def test_a_stream_leaves_shuffling_where_tensors_leave_it() -> None:
    one, other = stream(3), stream(3)
    list(as_examples(Squares(9)).shuffled_batches(4, one))
    list(memory(9).shuffled_batches(4, other))
    assert torch.equal(one.get_state(), other.get_state())


def test_transforms_vary_from_pass_to_pass_and_are_the_same_from_the_same_seed() -> None:
    lazy, rng = as_examples(Jittered(8)), stream(0)
    epochs = [sorted(x for b in lazy.shuffled_batches(4, rng) for x in b.inputs.tolist()) for _ in range(2)]
    assert all(a[0] == b[0] and a[1] != b[1] and a[2] != b[2] and a[3] != b[3] for a, b in zip(*epochs, strict=True))
    assert inputs_of(lazy, 0) == inputs_of(lazy, 0) != inputs_of(lazy, 1)
    assert [b.inputs.tolist() for b in lazy.batches(3)] == [b.inputs.tolist() for b in lazy.batches(3)]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_read_what_this_process_reads(num_workers: int) -> None:
    lazy = as_examples(Jittered(10))
    assert inputs_of(lazy.loaded_by(num_workers), 0) == inputs_of(lazy, 0)
    before = torch.default_generator.get_state()
    loader = as_examples(DataLoader(Jittered(10), num_workers=num_workers))
    assert [b.inputs.tolist() for b in loader.batches(4)] == [b.inputs.tolist() for b in lazy.batches(4)]
    assert torch.equal(torch.default_generator.get_state(), before)


def test_transforms_do_not_depend_on_the_batch_and_leave_no_trace() -> None:
    lazy = as_examples(Jittered(8))
    states = random.getstate(), str(np.random.get_state()), torch.default_generator.get_state()
    by_size = [sorted(x for batch in inputs_of(lazy, 5, size) for x in batch) for size in (1, 3, 8)]
    assert by_size[0] == by_size[1] == by_size[2]
    assert random.getstate() == states[0]
    assert str(np.random.get_state()) == states[1]
    assert torch.equal(torch.default_generator.get_state(), states[2])


def test_trees_of_inputs() -> None:
    class Patients(Squares):
        def __getitem__(self, index: int) -> Any:
            scan = np.full((1, 4, 4), index, dtype=np.float32)
            return {"scan": scan, "table": (torch.tensor([index, 1.0]), index * 0.5)}, index % 2

    lazy = as_examples(Patients(5))
    batch = next(lazy.shuffled_batches(3, stream(0))).to(torch.device("cpu"))
    assert batch.inputs["scan"].shape == (3, 1, 4, 4)
    values, halves = batch.inputs["table"]
    assert torch.equal(values[:, 0] / 2, halves)
    assert halves.dtype == torch.float32
    kept = Examples(lazy.probe().inputs, lazy.probe().labels)  # the same in memory
    assert kept.take(torch.tensor([1])).inputs["table"][0].tolist() == [[1.0, 1.0]]
    assert len(kept.joined(kept)) == 4
    assert as_examples((kept.inputs, kept.labels)).inputs.keys() == {"scan", "table"}


def test_masks_as_labels() -> None:
    class Slices(Squares):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(1, 6, 5), torch.full((6, 5), index, dtype=torch.uint8)

    batch = next(as_examples(Slices(4)).batches(3))
    assert (batch.labels.shape, len(batch)) == ((3, 6, 5), 3)


class Ragged(Squares):
    def __getitem__(self, index: int) -> Any:
        return torch.ones(index + 1), index % 2


def padded(items: list[Any]) -> tuple[Tensor, Tensor]:
    return pad_sequence([x for x, _ in items], batch_first=True), torch.tensor([y for _, y in items])


def test_sizes_that_differ_need_a_collate_function() -> None:
    with pytest.raises(InputError, match=r"the inputs of example 0 \(1\) and 1 \(2\) do not fit .* collate_fn"):
        next(as_examples(Ragged(3)).batches(2))
    loader = DataLoader(Ragged(5), batch_size=64, shuffle=True, collate_fn=padded)
    sizes = [tuple(batch.inputs.shape) for batch in as_examples(loader).batches(2)]
    assert sizes == [(2, 2), (2, 4), (1, 5)]


def test_what_a_loader_would_do_by_itself_is_refused() -> None:
    weighted = DataLoader(Squares(4), sampler=WeightedRandomSampler([1.0] * 4, 4))
    with pytest.raises(InputError, match="draws by a WeightedRandomSampler, which would be left out"):
        as_examples(weighted)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_examples_that_are_no_pairs_are_named(num_workers: int) -> None:
    class Rows(Squares):
        def __getitem__(self, index: int) -> Any:
            return {"text": 1} if index == 3 else (torch.zeros(1), 0)

    with pytest.raises(InputError, match="example 3 of the Dataset is a dict, not a pair"):
        list(as_examples(Rows(6)).loaded_by(num_workers).batches(2))  # type: ignore[attr-defined]


def test_errors_of_a_dataset_say_which_example(tmp_path: Path) -> None:
    class Files(Squares):
        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(np.load(tmp_path / f"{index}.npy")), 0

    with pytest.raises(FileNotFoundError) as found:
        next(as_examples(Files(3)).take(torch.tensor([2])).batches(1))
    assert found.value.__notes__ == ["reading example 2 of the Files"]


def test_what_is_in_memory_stays_there() -> None:
    inside = TensorDataset(torch.arange(6).float()[:, None], torch.arange(6))
    assert not as_examples(inside).is_lazy
    part = as_examples(Subset(inside, [4, 1]))
    assert (part.is_lazy, part.labels.tolist()) == (False, [4, 1])
    nested = as_examples(Subset(Subset(Squares(9), [8, 7, 6]), [2, 0]))
    assert next(nested.batches(2)).labels.tolist() == [6, 8]


def test_all_at_once_is_refused() -> None:
    with pytest.raises(InputError, match="works on the inputs of all examples at once, and these are read lazily"):
        _ = as_examples(Squares(3)).inputs


def test_labels_are_known_where_a_dataset_lists_them() -> None:
    source = Squares(5)
    assert as_examples(source).known_labels is None
    source.targets = [0, 1, 2, 1, 0]  # type: ignore[attr-defined]
    chosen = as_examples(source).take(torch.tensor([2, 0]))
    assert chosen.known_labels.tolist() == [2, 0]
    assert source.reads == 0


def test_joined_examples_are_read_from_each() -> None:
    both = as_examples(Squares(3)).joined(as_examples(Squares(9)).take(torch.tensor([8, 5])), memory(2))
    assert next(both.batches(9)).labels.tolist() == [0, 1, 2, 8, 5, 0, 1]


def test_transforms_given_apart_run_at_every_reading() -> None:
    lazy = as_examples(Squares(4)).transformed(lambda x: x + torch.rand(()))  # type: ignore[attr-defined]
    assert inputs_of(lazy, 0) == inputs_of(lazy, 0) != inputs_of(lazy, 1)


def test_batches_for_evaluation_are_smaller_where_inputs_are_large() -> None:
    class Large(Squares):
        def __getitem__(self, index: int) -> Any:
            return torch.zeros(READ_AT_ONCE // 16), 0  # a quarter of the limit each

    assert [len(batch) for batch in as_examples(Large(6)).batches(200)] == [4, 2]


def test_no_examples_at_all() -> None:
    nothing = as_examples(Squares(0))
    assert len(nothing) == 0
    assert [*nothing.batches(3), *nothing.shuffled_batches(3, stream(0))] == []
    assert len(nothing.probe()) == 0
