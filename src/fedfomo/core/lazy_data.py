"""Examples that are read batch by batch from a map-style data set, which may be larger than memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    Dataset,
    IterableDataset,
    Subset,
)

from fedfomo.core.batch_reading import (
    Batch,
    BatchPlan,
    Collate,
    CollateThenTransform,
    read_batch,
    read_by_workers,
    widened,
)
from fedfomo.core.data import Examples, UnreadableExamples
from fedfomo.core.rng import state_seed
from fedfomo.core.trees import Tree, leaves, tree_map, tree_of_one
from fedfomo.errors import InputError, require

FIXED = 0  # the seed of a pass whose transforms are the same every time: evaluation
READ_AT_ONCE = 16 * 2**20  # bytes of inputs in a batch for evaluation; feature maps take a multiple of that


class LazyExamples(UnreadableExamples):
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

    def refusal(self, what: str) -> InputError:
        """Say that they cannot be read all at once."""
        return InputError(
            f"this method, or option, works on the {what} of all examples at once, and these are read lazily: choose"
            " another, or give tensors in memory: (inputs, labels)"
        )

    @property
    def origin(self) -> Any:
        """The data set as it was given, below all transforms."""
        source = self.source
        while isinstance(source, _Transformed):
            source = source.source
        return source

    @property
    def known_labels(self) -> Tree:
        """The labels; None unless the data set lists them as torchvision's do, in `targets` or `labels`."""
        source = self.origin
        for name in ("targets", "labels"):
            listed = getattr(source, name, None)
            if listed is not None and hasattr(listed, "__len__") and len(listed) == _length(source):
                try:
                    return widened(torch.as_tensor(listed)[self.indices])
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
        """Return the examples with each input as a transform makes it of tensors, whenever it is read."""
        return self._with(source=_Transformed(self.source, transform))

    def transformed_as_batches(self, transform: Callable[[Tree], Tree]) -> LazyExamples:
        """Return the examples with inputs that are transformed as the collate function has put them together."""
        return self._with(collate=CollateThenTransform(self.collate, transform))

    def joined(self, *others: Examples) -> LazyExamples:
        """Return these examples and others behind them, unread."""
        sources = [Subset(lazy.source, lazy.indices.tolist()) for lazy in (self, *map(as_lazy, others))]
        return LazyExamples(_Joined(sources), self.collate, self.num_workers) if others else self

    def read(self) -> Batch:
        """Read all of them at once."""
        return read_batch(self.source, self.collate, self.indices.tolist(), self.draw)

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
        first = read_batch(self.source, self.collate, self.indices[:1].tolist(), self.draw)
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
            return (read_batch(self.source, self.collate, indices, self.draw) for indices in plan)
        return read_by_workers(BatchPlan(self.source, self.collate, plan, self.draw), self.num_workers)

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


def _length(source: Any) -> int:
    is_mapped = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if not is_mapped or isinstance(source, IterableDataset | Mapping | str):
        raise InputError(f"{type(source).__name__} has no length: give (inputs, labels) or a map-style Dataset")
    return len(source)


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
    """Another data set's examples, the inputs of which are turned into tensors and transformed."""

    def __init__(self, source: Any, transform: Callable[[Any], Any]) -> None:
        self.source = source
        self._transform = transform

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Any:
        value, *rest = self.source[index]
        return self._transform(tree_of_one(value, "inputs", index)), *rest


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
