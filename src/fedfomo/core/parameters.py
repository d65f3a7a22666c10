"""A model's parameters as one flat vector θ.

θ holds the trainable coordinates first and the float buffers (BatchNorm's running statistics, frozen weights)
behind them, so that mixing and averaging are arithmetic on whole vectors while distances look at
`θ[:num_trainable]`. Integer buffers never enter θ: they cannot be averaged.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedfomo.errors import InputError


@dataclass(frozen=True)
class Slot:
    """Where one named tensor lies in θ."""

    name: str
    shape: torch.Size
    start: int

    @property
    def owner(self) -> str:
        """The name of the module whose tensor it is."""
        return self.name.rpartition(".")[0]

    @property
    def stop(self) -> int:
        """The end of the tensor's coordinates."""
        return self.start + math.prod(self.shape)


@dataclass(frozen=True)
class Layer:
    """A module that owns parameters itself, not through others: a convolution, a BatchNorm, a linear map."""

    name: str
    is_convolution: bool


@dataclass(frozen=True)
class Layout:
    """The map from θ to a module's named tensors."""

    slots: tuple[Slot, ...]
    num_trainable: int
    size: int
    channels_last: bool = False  # how the weights of 2-D convolutions lie within their slots

    @classmethod
    def of(cls, module: nn.Module, channels_last: bool = False) -> Layout:
        """Lay out a module: trainable parameters first, then frozen ones and float buffers."""
        named = [*module.named_parameters(), *module.named_buffers()]
        floats = [(name, tensor) for name, tensor in named if not _is_integer(tensor)]
        for name, tensor in floats:
            if tensor.dtype != torch.float32:
                raise InputError(f"'{name}' is {tensor.dtype}: models are float32 here, call .float() on yours")
        trainable = [(name, tensor) for name, tensor in floats if tensor.requires_grad]
        others = [(name, tensor) for name, tensor in floats if not tensor.requires_grad]
        if not trainable:
            raise InputError(f"{type(module).__name__} has no trainable parameter: nothing could be learnt")
        slots: list[Slot] = []
        start = 0
        for name, tensor in trainable + others:
            slots.append(Slot(name, tensor.shape, start))
            start = slots[-1].stop
        return cls(tuple(slots), sum(tensor.numel() for _, tensor in trainable), start, channels_last)

    def layers(self) -> tuple[Layer, ...]:
        """List the layers that have trainable parameters, in the order in which the module holds them."""
        trainable = [slot for slot in self.slots if slot.start < self.num_trainable]
        names = dict.fromkeys(slot.owner for slot in trainable)
        deep = {slot.owner for slot in trainable if len(slot.shape) >= 3}
        return tuple(Layer(name, name in deep) for name in names)

    def mask(self, layers: Collection[Layer]) -> Tensor:
        """Mark the coordinates of θ, buffers included, that belong to some layers."""
        owners = {layer.name for layer in layers}
        mask = torch.zeros(self.size, dtype=torch.bool)
        for slot in self.slots:
            mask[slot.start : slot.stop] = slot.owner in owners
        return mask

    def coordinates_below(self, name: str) -> Tensor:
        """Return where in θ the coordinates of a submodule lie, in the order of the submodule's own θ."""
        inside = [slot for slot in self.slots if slot.name.startswith(name + ".")]
        return torch.cat([torch.arange(slot.start, slot.stop) for slot in inside])

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """Name the pieces of θ; the pieces share its memory."""
        return {slot.name: self._view(theta, slot) for slot in self.slots}

    def trainable_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Name the pieces of a vector that has the trainable coordinates only, such as a gradient."""
        return {slot.name: self._view(vector, slot) for slot in self.slots if slot.start < self.num_trainable}

    def _view(self, vector: Tensor, slot: Slot) -> Tensor:
        piece = vector[slot.start : slot.stop]
        if self.channels_last and len(slot.shape) == 4:
            out, channels, height, width = slot.shape
            return piece.view(out, height, width, channels).permute(0, 3, 1, 2)
        return piece.view(slot.shape)

    def flatten(self, module: nn.Module) -> Tensor:
        """Copy a module's tensors into a new θ."""
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        theta = torch.empty(self.size)
        for name, view in self.views(theta).items():
            view.copy_(tensors[name].detach())
        return theta


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())
