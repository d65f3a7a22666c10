"""Labelled examples, and the three disjoint sets that a client owns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedfomo.errors import InputError


@dataclass(frozen=True)
class Examples:
    """Inputs and labels, one row each per example."""

    inputs: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise InputError(f"{len(self.inputs)} inputs but {len(self.labels)} labels: give one label per input")

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, indices: Tensor) -> Examples:
        """Return the chosen examples, in the order of the indices."""
        return Examples(self.inputs[indices], self.labels[indices])

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
    """What one client owns: it trains on one set, judges models on the second, and is judged on the third."""

    train: Examples
    validation: Examples
    test: Examples


def as_examples(data: Examples | tuple[Tensor, Tensor] | Dataset[tuple[Tensor, Tensor]]) -> Examples:
    """Read tensors or any map-style torch `Dataset` of (input, label) pairs into memory."""
    if isinstance(data, Examples):
        return data
    if isinstance(data, tuple):
        return Examples(*data)
    size = getattr(data, "__len__", None)
    if size is None:
        raise InputError(f"{type(data).__name__} has no length: give a map-style Dataset or a pair of tensors")
    pairs = [data[index] for index in range(size())]
    if not pairs:
        raise InputError("an empty Dataset says nothing of its shapes: give empty tensors instead")
    inputs = torch.stack([torch.as_tensor(pair[0]) for pair in pairs])
    labels = torch.stack([torch.as_tensor(pair[1]) for pair in pairs])
    return Examples(inputs, labels)
