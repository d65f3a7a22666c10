"""Reading batches of a map-style data set: in this process, or by worker processes ahead of the training.

Every reading of an example has a seed of its own, made of the pass (in training: seed, purpose, round, client and
epoch) and of its index. Random transforms draw from that seed through the default generators of torch, NumPy and
Python; so they vary from epoch to epoch, and do not depend on the number of workers or on interruptions.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedfomo.core.data import Examples
from fedfomo.core.open_files import reopen_files
from fedfomo.core.rng import derived_seed, forked_rng
from fedfomo.core.trees import Tree, described, leaves, moved, stacked, tree_map
from fedfomo.errors import InputError, require

Collate = Callable[[list[Any]], Any]
"""From the examples of a batch, as the data set gives them, to a pair (inputs, labels)."""


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


def read_batch(source: Any, collate: Collate | None, indices: Sequence[int], draw: int) -> Batch:
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
        inputs, labels = collated(items, collate, indices)
    return Batch(inputs, tree_map(widened, labels), len(indices))


def collated(items: list[Any], collate: Collate | None, indices: Sequence[int]) -> tuple[Tree, Tree]:
    """Return inputs and labels of the examples of a batch; the indices are what errors call these by."""
    if collate is None:
        for index, item in zip(indices, items, strict=True):
            held = f"example {index} of the Dataset is a {type(item).__name__}, not a pair (input, label)"
            way_out = "or give a collate function that makes (inputs, labels) of such examples"
            require(isinstance(item, tuple | list) and len(item) == 2, f"{held}, {way_out}")
        inputs, labels = (
            stacked([item[place] for item in items], what, indices) for place, what in enumerate(("inputs", "labels"))
        )
        return inputs, labels
    made = collate(items)
    is_pair = isinstance(made, tuple | list) and len(made) == 2
    require(is_pair, f"the collate function gives {described(made)}: it must give a pair (inputs, labels)")
    return made[0], made[1]


class CollateThenTransform:
    """A collate function whose batches' inputs are transformed."""

    def __init__(self, collate: Collate | None, transform: Callable[[Tree], Tree]) -> None:
        self._collate = collate
        self._transform = transform

    def __call__(self, items: list[Any]) -> tuple[Tree, Tree]:
        inputs, labels = collated(items, self._collate, range(len(items)))
        return self._transform(inputs), labels


def widened(labels: Tensor) -> Tensor:
    """Widen whole numbers, which torch's losses take in one width only."""
    return labels.long() if labels.dtype in (torch.int8, torch.int16, torch.int32) else labels


class BatchPlan(Dataset[Any]):
    """Whole batches, read in a worker process."""

    def __init__(self, source: Any, collate: Collate | None, plan: list[list[int]], draw: int) -> None:
        self._given = source, collate
        self._plan = plan
        self._draw = draw

    def __len__(self) -> int:
        return len(self._plan)

    def __getitem__(self, number: int) -> tuple[Tree, Tree, int] | InputError:
        try:
            batch = read_batch(*self._given, self._plan[number], self._draw)
        except InputError as error:
            return error  # a loader would bury it in the worker's traceback
        return batch.inputs, batch.labels, len(batch)


def read_by_workers(batches: BatchPlan, num_workers: int) -> Iterator[Batch]:
    """Read batches by worker processes, which end with the iteration."""
    context = "fork" if "fork" in multiprocessing.get_all_start_methods() else None
    # The loader draws a seed for its workers, which nothing here uses: not from the generator of the layers.
    loader: Iterable[Any] = DataLoader(
        batches,
        batch_size=None,
        num_workers=min(num_workers, len(batches)),
        collate_fn=_as_it_is,
        worker_init_fn=_begin_to_read,
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


def _begin_to_read(worker: int) -> None:
    del worker
    reopen_files()


def _as_it_is(value: Any) -> Any:
    return value
