"""Whatever a user gives for data, as `Examples`: tensors, arrays, lists, data sets and loaders."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset, default_collate

from fedfomo.core.batch_reading import collated, widened
from fedfomo.core.data import Examples
from fedfomo.core.lazy_data import LazyExamples
from fedfomo.core.trees import Tree, as_tree, leaves, tree_map
from fedfomo.errors import InputError, require


def as_examples(data: Any) -> Examples:
    """Take a pair of tensors or arrays, or a map-style `Dataset`, or a `DataLoader` for its collate and workers.

    Pairs, lists and `TensorDataset` are in memory; any other data set is read lazily.
    """
    examples = _given(data)
    if examples.is_lazy or all(widened(labels) is labels for labels in leaves(examples.labels)):
        return examples
    return Examples(examples.inputs, tree_map(widened, examples.labels))


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
        return Examples(*collated(data, None, range(len(data))))
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


def _in_memory(values: Any, what: str) -> Tree:
    try:
        tree = as_tree(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"the {what} cannot become a tensor of numbers ({error})") from None
    is_rows = all(tensor.dim() > 0 for tensor in leaves(tree))
    require(is_rows, f"the {what} are one number, not one row per example")
    return tree
