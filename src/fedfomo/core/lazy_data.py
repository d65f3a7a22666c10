"""Examples that are read batch by batch from a map-style data set, which may be larger than memory.

Every reading of an example has a seed of its own, made of the pass (in training: seed, purpose, round, client and
epoch) and of its index. Random transforms draw from that seed through the default generators of torch, NumPy and
Python; so they vary from epoch to epoch, and do not depend on the number of workers or on interruptions.
"""

from __future__ import annotations

import multiprocessing
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from fedfomo.core.data import Examples
from fedfomo.core.rng import derived_seed, forked_rng, state_seed
from fedfomo.core.trees import Tree, as_tree, described, leaves, moved, stacked, tree_map
from fedfomo.errors import InputError, require

Collate = Callable[[list[Any]], Any]
"""From the examples of a batch, as the data set gives them, to a pair (inputs, labels)."""

FIXED = 0  # the seed of a pass whose transforms are the same every time: evaluation
READ_AT_ONCE = 16 * 2**20  # bytes of inputs in a batch for evaluation; feature maps take a multiple of that


class Batch(Examples):
    """Examples that were read, in the form in which their collate function put them."""

    _size: int

    def __init__(self, inputs: Tree, labels: Tree, size: int) -> None:
        for name, value in {"inputs": inputs, "labels": labels, "_size": size}.items():
            object.__setattr__(self, name, value)  # examples are frozen

    def __len__(self) -> int:
        return self._size

    def _with_inputs(self, inputs: Tree) -> Batch:
        return Batch(inputs, self.labels, self._size)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device; itself if it is there."""
        if all(tensor.device == device for tensor in leaves((self.inputs, self.labels))):
            return self
        return Batch(moved(self.inputs, device), moved(self.labels, device), self._size)


class LazyExamples(Examples):
    """Examples of a map-style data set, read when a batch needs them."""

    source: Any  # with __len__ and __getitem__
    indices: Tensor
    collate: Collate | None
    num_workers: int
    draw: int  # the seed of this pass's transforms

    def __init__(
        self,
        source: Any,
        collate: Collate | None = None,
        num_workers: int = 0,
        indices: Tensor | None = None,
        draw: int = FIXED,
    ) -> None:
        require(num_workers >= 0, f"num_workers must be at least 0, not {num_workers}")
        chosen = torch.arange(_length(source)) if indices is None else indices
        given = {"source": source, "collate": collate, "num_workers": num_workers, "indices": chosen, "draw": draw}
        for name, value in given.items():
            object.__setattr__(self, name, value)  # examples are frozen

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"LazyExamples({len(self)} of {type(self.source).__name__})"

    @property
    def is_lazy(self) -> bool:
        """They are read batch by batch."""
        return True

    @property
    def inputs(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refuse."""
        raise _refusal("inputs")

    @property
    def labels(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refuse."""
        raise _refusal("labels")

    @property
    def known_labels(self) -> Tree:
        """The labels; None unless the data set lists them as torchvision's do, in `targets` or `labels`."""
        source = self.source
        while isinstance(source, _Transformed):
            source = source.source
        for name in ("targets", "labels"):
            listed = getattr(source, name, None)
            if listed is not None and hasattr(listed, "__len__") and len(listed) == _length(source):
                try:
                    return _whole(torch.as_tensor(listed)[self.indices])
                except (TypeError, ValueError, RuntimeError):
                    return None  # a list of something else
        return None

    def take(self, indices: Tensor) -> LazyExamples:
        """Return the chosen examples, unread."""
        return self._with(indices=self.indices[indices])

    def seeded(self, rng: torch.Generator) -> LazyExamples:
        """Return the examples as one pass reads them whose transforms are drawn where a generator stands."""
        return self._with(draw=state_seed(rng))

    def loaded_by(self, num_workers: int) -> LazyExamples:
        """Return the examples as so many processes read them, ahead of the training; 0: this process, in time."""
        return self._with(num_workers=num_workers)

    def transformed(self, transform: Callable[[Any], Any]) -> LazyExamples:
        """Return the examples with inputs that are transformed whenever they are read."""
        return self._with(source=_Transformed(self.source, transform))

    def joined(self, *others: Examples) -> LazyExamples:
        """Return these examples and others behind them, unread."""
        sources = [Subset(lazy.source, lazy.indices.tolist()) for lazy in (self, *map(as_lazy, others))]
        return LazyExamples(_Joined(sources), self.collate, self.num_workers) if others else self

    def read(self) -> Batch:
        """Read all of them at once."""
        return _read(self.source, self.collate, self.indices.tolist(), self.draw)

    def to(self, device: torch.device) -> Batch:
        """Read all of them at once, onto a device."""
        return self.read().to(device)

    def augmented(self, rng: torch.Generator) -> Examples:
        """Read these images, and shift and mirror each at random."""
        return self.read().augmented(rng)

    def probe(self) -> Examples:
        """Read two examples, if possible with the least and the greatest label."""
        chosen = super().probe()
        return chosen.read() if isinstance(chosen, LazyExamples) else chosen

    def batches(self, size: int) -> Iterator[Batch]:
        """Read the examples in order, in batches of this size, or of less where inputs are large."""
        if len(self) == 0:
            return iter(())
        first = _read(self.source, self.collate, self.indices[:1].tolist(), self.draw)
        bytes_each = sum(tensor.nbytes for tensor in leaves(first.inputs))
        size = min(size, max(1, READ_AT_ONCE // max(1, bytes_each)))
        return self._read_by(self.indices.split(size))

    def shuffled_batches(self, size: int, rng: torch.Generator) -> Iterator[Batch]:
        """Read the examples in random order; their transforms are drawn where the generator stands."""
        drawn = self.seeded(rng)
        order = torch.randperm(len(self), generator=rng)
        return drawn._read_by(self.indices[order].split(size)) if len(self) else iter(())

    def _read_by(self, batches: Sequence[Tensor]) -> Iterator[Batch]:
        plan = [indices.tolist() for indices in batches]
        if self.num_workers == 0:
            return (_read(self.source, self.collate, indices, self.draw) for indices in plan)
        return _read_by_workers(_Batches(self.source, self.collate, plan, self.draw), self.num_workers)

    def _with(self, **changes: Any) -> LazyExamples:
        return LazyExamples(**{**vars(self), **changes})


def as_lazy(examples: Examples) -> LazyExamples:
    """Return examples as they are read one by one, for what works on single ones."""
    return examples if isinstance(examples, LazyExamples) else LazyExamples(_Rows(examples))


def spread(examples: Examples, most: int) -> Examples:
    """Return up to so many examples in memory, from all over a set; all of those that are there anyway."""
    if not isinstance(examples, LazyExamples):
        return examples
    return examples.take(torch.linspace(0, len(examples) - 1, min(len(examples), most)).long()).read()


def as_examples(data: Any) -> Examples:
    """Take a pair of tensors or arrays, or a map-style `Dataset`, or a `DataLoader` for its collate and workers.

    Pairs, lists and `TensorDataset` are in memory; any other data set is read lazily.
    """
    examples = _given(data)
    if examples.is_lazy or all(_whole(labels) is labels for labels in leaves(examples.labels)):
        return examples
    return Examples(examples.inputs, tree_map(_whole, examples.labels))


def _given(data: Any) -> Examples:
    if isinstance(data, Examples):
        return data
    if isinstance(data, tuple):
        require(len(data) == 2, f"{len(data)} parts where inputs and labels were expected")
        return Examples(_in_memory(data[0], "inputs"), _in_memory(data[1], "labels"))
    if isinstance(data, DataLoader):
        return _of_loader(data)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return Examples(*data.tensors)
    if type(data) is Subset:
        return as_examples(data.dataset).take(torch.as_tensor(data.indices, dtype=torch.int64))
    if isinstance(data, list):
        require(len(data) > 0, "an empty list says nothing of its shapes: give empty tensors instead")
        return Examples(*_pair_of(_collated(data, None, range(len(data)))))
    return LazyExamples(data)


def _of_loader(loader: DataLoader[Any]) -> LazyExamples:
    """Take what a loader knows of reading; order and batch size are the trainer's."""
    kind = type(loader.sampler).__name__
    is_plain = isinstance(loader.sampler, SequentialSampler | RandomSampler) and not getattr(
        loader.sampler, "replacement", False
    )
    way_out = "shuffling is the trainer's: give a loader without a sampler of its own"
    require(is_plain, f"the DataLoader draws by a {kind}, which would be left out: {way_out}")
    require(loader.worker_init_fn is None, "the DataLoader's worker_init_fn would be left out: do that in the Dataset")
    is_default = loader.collate_fn is default_collate
    return LazyExamples(loader.dataset, None if is_default else loader.collate_fn, loader.num_workers)


def _length(source: Any) -> int:
    is_mapped = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if not is_mapped or isinstance(source, IterableDataset | Mapping | str):
        raise InputError(f"{type(source).__name__} has no length: give (inputs, labels) or a map-style Dataset")
    return len(source)


def _read(source: Any, collate: Collate | None, indices: Sequence[int], draw: int) -> Batch:
    """Read a batch, every example from its own seed."""
    if not indices:
        return Batch(torch.empty(0), torch.empty(0), 0)
    with forked_rng() as seed_all:
        items: list[Any] = []
        for index in indices:
            seed_all(derived_seed(draw, index))
            try:
                items.append(source[index])
            except Exception as error:
                error.add_note(f"reading example {index} of the {type(source).__name__}")
                raise
        seed_all(derived_seed(draw, "batch", *indices[:1]))
        inputs, labels = _pair_of(_collated(items, collate, indices))
    return Batch(inputs, tree_map(_whole, labels), len(indices))


def _collated(items: list[Any], collate: Collate | None, indices: Sequence[int]) -> Any:
    if collate is not None:
        return collate(items)
    for index, item in zip(indices, items, strict=True):
        is_pair = isinstance(item, tuple | list) and len(item) == 2
        way_out = "or give a collate function that makes (inputs, labels) of such examples"
        require(
            is_pair, f"example {index} of the Dataset is a {type(item).__name__}, not a pair (input, label), {way_out}"
        )
    return tuple(
        stacked([item[place] for item in items], what, indices) for place, what in enumerate(("inputs", "labels"))
    )


def _pair_of(collated: Any) -> tuple[Tree, Tree]:
    is_pair = isinstance(collated, tuple | list) and len(collated) == 2
    require(is_pair, f"the collate function gives {described(collated)}: it must give a pair (inputs, labels)")
    return collated[0], collated[1]


def _in_memory(values: Any, what: str) -> Tree:
    try:
        tree = as_tree(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"the {what} cannot become a tensor of numbers ({error})") from None
    is_rows = all(tensor.dim() > 0 for tensor in leaves(tree))
    require(is_rows, f"the {what} are one number, not one row per example")
    return tree


def _whole(labels: Tensor) -> Tensor:
    """Widen whole numbers, which torch's losses take in one width only."""
    return labels.long() if labels.dtype in (torch.int8, torch.int16, torch.int32) else labels


def _refusal(what: str) -> InputError:
    return InputError(
        f"this method, or option, works on the {what} of all examples at once, and these are read lazily: choose"
        " another, or give tensors in memory: (inputs, labels)"
    )


class _Batches(Dataset[Any]):
    """Whole batches, read in a worker process."""

    def __init__(self, source: Any, collate: Collate | None, plan: list[list[int]], draw: int) -> None:
        self._given = source, collate
        self._plan = plan
        self._draw = draw

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, number: int) -> tuple[Tree, Tree, int] | InputError:
        try:
            batch = _read(*self._given, self._plan[number], self._draw)
        except InputError as error:
            return error  # a loader would bury it in the worker's traceback
        return batch.inputs, batch.labels, len(batch)


def _read_by_workers(batches: _Batches, num_workers: int) -> Iterator[Batch]:
    context = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    # The loader draws a seed for its workers, which nothing here uses: not from the generator of the layers.
    loader: Iterable[Any] = DataLoader(
        batches,
        batch_size=None,
        num_workers=min(num_workers, len(batches)),
        collate_fn=_as_it_is,
        multiprocessing_context=context,
        generator=torch.Generator(),
    )
    with warnings.catch_warnings():
        # Python warns of forking beside threads, for locks that these may hold; reading uses none of those.
        warnings.simplefilter("ignore", DeprecationWarning)
        iterator = iter(loader)
    try:
        for found in iterator:
            if isinstance(found, InputError):
                raise found
            yield Batch(*found)
    finally:
        del iterator  # ends its processes; left to the collector of cycles, that takes seconds


def _as_it_is(value: Any) -> Any:
    return value


class _Rows(Dataset[Any]):
    """Examples in memory, one by one."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> tuple[Tree, Tree]:
        def row(tensor: Tensor) -> Tensor:
            return tensor[index]

        return tree_map(row, self._examples.inputs), tree_map(row, self._examples.labels)


class _Transformed(Dataset[Any]):
    """Another data set's examples with transformed inputs."""

    def __init__(self, source: Any, transform: Callable[[Any], Any]) -> None:
        self.source = source
        self._transform = transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        value, *rest = self.source[index]
        return self._transform(value), *rest


class _Joined(Dataset[Any]):
    """Several data sets, one behind the other."""

    def __init__(self, sources: Sequence[Any]) -> None:
        self._sources = sources
        self._ends = [*accumulate(len(source) for source in sources)]

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        number = bisect_right(self._ends, index)
        return self._sources[number][index - (self._ends[number - 1] if number else 0)]
