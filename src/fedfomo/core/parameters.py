"""A model's parameters as one flat vector θ.

θ is what travels: the trainable coordinates first and the float buffers that training moves (BatchNorm's running
statistics) behind them, so that mixing and averaging are arithmetic on whole vectors while distances look at
`θ[:num_trainable]`. What stays is not in θ: frozen weights, and with them the statistics of layers that are frozen;
buffers that a `state_dict` leaves out; integer buffers, which cannot be averaged; and what a client keeps for itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedfomo.errors import InputError

_Named = Sequence[tuple[str, Tensor]]


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
        """Lay out what training moves in a module: parameters first, then float buffers."""
        return cls._of(_moving(module), channels_last)

    @classmethod
    def split(cls, module: nn.Module, channels_last: bool, kept: Collection[str]) -> tuple[Layout, Layout]:
        """Lay out what travels, and all that moves: of each kind, parameters and buffers, first what travels."""
        trainable, buffers = _moving(module)
        if not any(name in kept for name, _ in (*trainable, *buffers)):
            whole = cls._of((trainable, buffers), channels_last)
            return whole, whole
        travelling = [[part for part in parts if part[0] not in kept] for parts in (trainable, buffers)]
        if not travelling[0]:
            raise InputError("every parameter that trains is kept at the clients: nothing is left to share")
        staying = [[part for part in parts if part[0] in kept] for parts in (trainable, buffers)]
        whole = ([*travelling[0], *staying[0]], [*travelling[1], *staying[1]])
        return cls._of((travelling[0], travelling[1]), channels_last), cls._of(whole, channels_last)

    @classmethod
    def _of(cls, moving: tuple[_Named, _Named], channels_last: bool) -> Layout:
        slots: list[Slot] = []
        start = 0
        for name, tensor in (*moving[0], *moving[1]):
            slots.append(Slot(name, tensor.shape, start))
            start = slots[-1].stop
        return cls(tuple(slots), sum(tensor.numel() for _, tensor in moving[0]), start, channels_last)

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
        """Name the pieces of θ, or of several that are stacked; the pieces share its memory."""
        return {slot.name: self._view(theta, slot) for slot in self.slots}

    def trainable_views(self, vector: Tensor) -> dict[str, Tensor]:
        """Name the pieces of a vector that has the trainable coordinates only, such as a gradient."""
        return {slot.name: self._view(vector, slot) for slot in self.slots if slot.start < self.num_trainable}

    def _view(self, vector: Tensor, slot: Slot) -> Tensor:
        piece, stacked = vector[..., slot.start : slot.stop], vector.shape[:-1]
        if self.channels_last and len(slot.shape) == 4:
            out, channels, height, width = slot.shape
            return piece.view((*stacked, out, height, width, channels)).movedim(-1, -3)
        return piece.view((*stacked, *slot.shape))

    def flat(self, piece: Tensor) -> Tensor:
        """Return what would be one slot's piece of stacked θs, such as its gradients, as it lies in them."""
        return (piece.movedim(-3, -1) if self.channels_last and piece.dim() == 5 else piece).flatten(1)

    def flatten(self, module: nn.Module) -> Tensor:
        """Copy a module's tensors into a new θ."""
        tensors = dict([*module.named_parameters(), *module.named_buffers()])
        theta = torch.empty(self.size)
        for name, view in self.views(theta).items():
            view.copy_(tensors[name].detach())
        return theta


def _moving(module: nn.Module) -> tuple[_Named, _Named]:
    """Return what training moves: parameters that train, and float buffers that forward passes may write to."""
    trainable = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    frozen = {name for name, _ in frozen_modules(module)}
    saved = module.state_dict(keep_vars=True).keys()
    buffers = [
        (name, buffer)
        for name, buffer in module.named_buffers()
        if name in saved and not _is_integer(buffer) and name.rpartition(".")[0] not in frozen
    ]
    for name, tensor in (*trainable, *buffers):
        if tensor.dtype != torch.float32:
            raise InputError(f"'{name}' is {tensor.dtype}: models are float32 here, call .float() on yours")
    if not trainable:
        raise InputError(f"{type(module).__name__} has no trainable parameter: nothing could be learnt")
    return trainable, buffers


def frozen_modules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """List the modules that are frozen: those whose parameters all are, and those without any inside of such a one."""
    frozen: dict[str, nn.Module] = {}
    for name, inner in module.named_modules():
        needs_gradient = [parameter.requires_grad for parameter in inner.parameters()]
        is_inside = name.rpartition(".")[0] in frozen
        if not any(needs_gradient) and (needs_gradient or is_inside):
            frozen[name] = inner
    return list(frozen.items())


def frozen_digests(module: nn.Module) -> list[bytes]:
    """Hash each weight that is frozen, in the module's order."""
    frozen = [parameter for parameter in module.parameters() if not parameter.requires_grad]
    return [hashlib.sha256(weight.detach().cpu().contiguous().numpy().data).digest() for weight in frozen]


def _is_integer(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())
