"""Labelled examples, and the three disjoint sets that a client owns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedfomo.core.augmentation import crop_and_flip
from fedfomo.errors import InputError, require


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, one row each per example."""

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise InputError(f"{len(self.inputs)} inputs but {len(self.labels)} labels: give one label per input")

    def __len__(self) -> int:
        return self.inputs.shape[0]

    @property
    def expected(self) -> float:
        """How many there are; of a random sample of private examples, how many were to be expected."""
        return float(len(self))

    def take(self, indices: Tensor) -> Examples:
        """Return the chosen examples, in the order of the indices."""
        return Examples(self.inputs[indices], self.labels[indices])

    def joined(self, *others: Examples) -> Examples:
        """Return these examples and others behind them."""
        parts = (self, *others)
        return Examples(torch.cat([part.inputs for part in parts]), torch.cat([part.labels for part in parts]))

    def transformed(self, transform: Callable[[Any], Any]) -> Examples:
        """Return the examples with each one's input as a transform makes it."""
        if not len(self):
            return self
        return Examples(_stack([transform(inputs) for inputs in self.inputs], "transformed inputs"), self.labels)

    def augmented(self, rng: torch.Generator) -> Examples:
        """Return these images, each shifted and mirrored at random."""
        return Examples(crop_and_flip(self.inputs, rng), self.labels)

    def to(self, device: torch.device) -> Examples:
        """Return the examples on a device; these themselves if they are there."""
        if self.inputs.device == device:
            return self
        return Examples(self.inputs.to(device), self.labels.to(device))

    def batches(self, size: int) -> Iterator[Examples]:
        """Cut the examples into batches, in order; the last one may be short."""
        for start in range(0, len(self), size):
            yield Examples(self.inputs[start : start + size], self.labels[start : start + size])

    def shuffled_batches(self, size: int, rng: torch.Generator) -> Iterator[Examples]:
        """Cut the examples into batches in random order; the last one may be short."""
        for indices in torch.randperm(len(self), generator=rng).split(size):
            yield self.take(indices)


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


def as_examples(data: Examples | tuple[Any, Any] | Dataset[Any]) -> Examples:
    """Read a pair of tensors or arrays, or any map-style torch `Dataset` of (input, label) pairs, into memory."""
    examples = _read(data)
    is_odd = examples.labels.dtype in (torch.int8, torch.int16, torch.int32)  # which torch's losses do not take
    return Examples(examples.inputs, examples.labels.long()) if is_odd else examples


def _read(data: Examples | tuple[Any, Any] | Dataset[Any]) -> Examples:
    if isinstance(data, Examples):
        return data
    if isinstance(data, tuple):
        require(len(data) == 2, f"{len(data)} parts where inputs and labels were expected")
        return Examples(_tensor(data[0], "inputs"), _tensor(data[1], "labels"))
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        raise InputError(f"{type(data).__name__} has no length: give (inputs, labels) or a map-style Dataset")
    size: int = len(data)  # pyright: ignore[reportArgumentType]
    require(size > 0, "an empty Dataset says nothing of its shapes: give empty tensors instead")
    pairs = [data[index] for index in range(size)]
    for index, pair in enumerate(pairs):
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        require(is_pair, f"example {index} of the Dataset is a {type(pair).__name__}, not a pair (input, label)")
    return Examples(_stack([pair[0] for pair in pairs], "inputs"), _stack([pair[1] for pair in pairs], "labels"))


def _tensor(values: Any, what: str) -> Tensor:
    try:
        tensor = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"the {what} cannot become a tensor of numbers ({error})") from None
    require(tensor.dim() > 0, f"the {what} are one number, not one row per example")
    return tensor


def _stack(values: Sequence[Any], what: str) -> Tensor:
    try:
        return torch.stack([torch.as_tensor(value) for value in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"the Dataset's {what} do not fit into one tensor ({error})") from None
