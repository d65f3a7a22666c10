"""Tensors in dicts, tuples and lists: what a network may take as its input, and a loss as its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fedfomo.errors import InputError

Tree = Any
"""A tensor, or a dict, list or tuple of trees."""


def tree_map(change: Callable[[Tensor], Tensor], tree: Tree) -> Tree:
    """Return a tree of the same form with every tensor changed; whatever is no tensor stays."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, Mapping):
        return {name: tree_map(change, item) for name, item in tree.items()}
    if isinstance(tree, tuple | list):
        return _like(tree, [tree_map(change, item) for item in tree])
    return tree


def leaves(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree, in their order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping | tuple | list):
        for item in tree.values() if isinstance(tree, Mapping) else tree:
            yield from leaves(item)


def tree_join(join: Callable[[list[Tensor]], Tensor], trees: Sequence[Tree]) -> Tree:
    """Make one tree of several of the same form, joining the tensors that have the same place."""
    first = trees[0]
    if isinstance(first, Tensor):
        return join([*trees])
    if isinstance(first, Mapping):
        return {name: tree_join(join, [tree[name] for tree in trees]) for name in first}
    if isinstance(first, tuple | list):
        return _like(first, [tree_join(join, [tree[place] for tree in trees]) for place in range(len(first))])
    return [*trees]


def moved(tree: Tree, device: torch.device) -> Tree:
    """Return a tree on a device: of pinned memory, without waiting for it, if that is an accelerator."""
    if isinstance(tree, Tensor):
        if device.type == "cuda" and tree.device.type == "cpu":
            return tree.pin_memory().to(device, non_blocking=True)
        return tree.to(device)
    if hasattr(tree, "to"):  # packed sequences, tokens, graphs
        return tree.to(device)
    if isinstance(tree, Mapping):
        return {name: moved(item, device) for name, item in tree.items()}
    if isinstance(tree, tuple | list):
        return _like(tree, [moved(item, device) for item in tree])
    return tree


def as_tree(value: Any) -> Tree:
    """Turn arrays and numbers into tensors; dicts, and tuples of arrays, are trees, and any list is one tensor."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Mapping):
        return {name: as_tree(item) for name, item in value.items()}
    if _holds_arrays(value):
        return _like(value, [as_tree(item) for item in value])
    return torch.as_tensor(value)


def tree_of_one(value: Any, what: str, name: int) -> Tree:
    """Turn the value of a single example into a tree; the name is what errors call it by."""
    try:
        return as_tree(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"in the {what}, that of example {name} is a {type(value).__name__}, which cannot become a tensor"
            f" ({error}): transform it"
        ) from None


def stacked(values: Sequence[Any], what: str, names: Sequence[int] | None = None) -> Tree:
    """Make one tree of the values of single examples; the names are what errors call these by."""
    trees: list[Tree] = []
    names = range(len(values)) if names is None else names
    for name, value in zip(names, values, strict=True):
        trees.append(tree_of_one(value, what, name))
    try:
        return tree_join(torch.stack, trees)
    except (TypeError, ValueError, RuntimeError, LookupError):
        first = described(trees[0])
        odd = next((place for place, tree in enumerate(trees) if described(tree) != first), 0)
        raise InputError(
            f"the {what} of example {names[0]} ({first}) and {names[odd]} ({described(trees[odd])}) do not fit"
            " into one tensor: give DataLoader(dataset, collate_fn=...) in place of the Dataset, where collate_fn"
            " makes a pair (inputs, labels) of a batch"
        ) from None


def described(tree: Tree) -> str:
    """Say in words what a tree is."""
    if isinstance(tree, Tensor):
        return "×".join(map(str, tree.shape)) or "one number"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{name}: {described(item)}" for name, item in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(map(described, tree)) + ")"
    return f"a {type(tree).__name__}"


def _holds_arrays(value: Any) -> bool:
    if not isinstance(value, tuple):
        return False
    return any(getattr(item, "ndim", 0) or isinstance(item, Mapping) or _holds_arrays(item) for item in value)


def _like(one: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    if hasattr(one, "_fields"):
        return type(one)(*items)  # a named tuple
    return items if isinstance(one, list) else tuple(items)
