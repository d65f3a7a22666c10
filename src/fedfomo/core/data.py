"""Labelled examples, and the three disjoint sets that a client owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedfomo.core.augmentation import crop_and_flip
from fedfomo.core.trees import Tree, leaves, moved, stacked, tree_join, tree_map
from fedfomo.errors import InputError


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, one row each per example: tensors, or dicts, tuples and lists of tensors."""

    inputs: Tree
    labels: Tree

    def __post_init__(self) -> None:
        inputs, labels = _rows(self.inputs, "inputs"), _rows(self.labels, "labels")
        if inputs != labels:
            raise InputError(f"{inputs} inputs but {labels} labels: give one label per input")

    def __len__(self) -> int:
        return _rows(self.labels, "labels")

    @property
    def expected(self) -> float:
        """How many there are; of a random sample of private examples, how many were to be expected."""
        return float(len(self))

    @property
    def is_lazy(self) -> bool:
        """Whether they are read batch by batch, in place of being in memory."""
        return False

    @property
    def known_labels(self) -> Tree:
        """The labels, where they are known without reading the inputs; None where they are not."""
        return self.labels

    def take(self, indices: Tensor) -> Examples:
        """Return the chosen examples, in the order of the indices."""
        return self._changed(lambda tensor: tensor[indices])

    def joined(self, *others: Examples) -> Examples:
        """Return these examples and others behind them."""
        if not others:
            return self
        if any(other.is_lazy for other in others):
            raise InputError("examples that are read lazily cannot be joined to others in memory: give all as Datasets")
        parts = (self, *others)
        inputs = tree_join(torch.cat, [part.inputs for part in parts])
        return Examples(inputs, tree_join(torch.cat, [part.labels for part in parts]))

    def transformed(self, transform: Callable[[Any], Any]) -> Examples:
        """Return the examples with each one's input as a transform makes it."""
        if not len(self):
            return self
        rows = [tree_map(lambda tensor, row=row: tensor[row], self.inputs) for row in range(len(self))]
        return self._with_inputs(stacked([transform(row) for row in rows], "transformed inputs"))

    def augmented(self, rng: torch.Generator) -> Examples:
        """Return these images, each shifted and mirrored at random."""
        return self._with_inputs(crop_and_flip(self.inputs, rng))

    def to(self, device: torch.device) -> Examples:
        """Return the examples on a device; these themselves if they are there."""
        if isinstance(self.inputs, Tensor) and self.inputs.device == device:
            return self
        return Examples(moved(self.inputs, device), moved(self.labels, device))

    def seeded(self, rng: torch.Generator) -> Examples:
        """Return the examples as a pass reads them whose random transforms are drawn from a generator."""
        del rng  # tensors in memory have no transforms
        return self

    def for_local_use(self) -> Examples:
        """Return the examples for gradients of which nothing ever leaves the client, so that they need no noise."""
        return self

    def loaded_by(self, num_workers: int) -> Examples:
        """Return the examples as so many processes read them, ahead of the training."""
        del num_workers  # what is in memory is read
        return self

    def probe(self) -> Examples:
        """Return two examples in memory, if possible with the least and the greatest label, to try a model on."""
        labels = self.known_labels
        chosen = _extremes(labels) if isinstance(labels, Tensor) else torch.arange(min(2, len(self)))
        return self.take(chosen)

    def batches(self, size: int) -> Iterator[Examples]:
        """Cut the examples into batches, in order; the last one may be short."""
        for start in range(0, len(self), size):
            yield self._changed(lambda tensor, part=slice(start, start + size): tensor[part])

    def shuffled_batches(self, size: int, rng: torch.Generator) -> Iterator[Examples]:
        """Cut the examples into batches in random order; the last one may be short."""
        for indices in torch.randperm(len(self), generator=rng).split(size):
            yield self.take(indices)

    def _with_inputs(self, inputs: Tree) -> Examples:
        return Examples(inputs, self.labels)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Examples:
        return Examples(tree_map(change, self.inputs), tree_map(change, self.labels))


class UnreadableExamples(Examples):
    """Examples whose inputs and labels cannot be had as such; a subclass says why."""

    def refusal(self, what: str) -> InputError:
        """Return the error of whoever asks for inputs or labels."""
        raise NotImplementedError

    @property
    def inputs(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refuse."""
        raise self.refusal("inputs")

    @property
    def labels(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refuse."""
        raise self.refusal("labels")


@dataclass(frozen=True)
class ClientData:
    """What one client owns: it trains on one set, evaluates models on the second, and is tested on the third."""

    train: Examples
    validation: Examples
    test: Examples


def can_contribute(data: ClientData) -> bool:
    """Tell whether a client has data both to train on and to evaluate on; if not, nothing of it is sent on."""
    return is_enough(len(data.train), len(data.validation))


def is_enough(train: int, validation: int) -> bool:
    """Tell whether a client with so many examples contributes."""
    return train > 0 and validation > 0


def _rows(tree: Tree, what: str) -> int:
    """Return how many examples a tree of tensors has rows for."""
    if isinstance(tree, Tensor):
        return tree.shape[0]
    sizes = {len(tensor) for tensor in leaves(tree)}
    if len(sizes) != 1:
        counts = " and ".join(map(str, sorted(sizes))) or "no"
        raise InputError(f"the {what} have tensors of {counts} rows: each takes one row per example")
    return sizes.pop()


def _extremes(labels: Tensor) -> Tensor:
    """Return where the least and the greatest label are: what a loss cannot take is most likely one of them."""
    if len(labels) < 2:
        return torch.arange(len(labels))
    values = labels.double().flatten(1).sum(1) if labels.dim() > 1 else labels.double()  # truth values have no order
    least, greatest = values.argmin(), values.argmax()
    return torch.arange(2) if least == greatest else torch.stack([least, greatest])
