"""Models on the wire with 8 or 16 bits a coordinate, the cure for bandwidth that the paper names.

Every block of coordinates is spread evenly between its smallest and largest value; rounding is to the nearest level,
so the error of a coordinate is at most half a step. What is not finite stays so, and is refused by whoever receives it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedfomo.core.messages import Flat, MessageError

BLOCK = 1024  # coordinates that share a smallest and a largest value
RESTORED_AT_ONCE = 64  # blocks
PARTS = ("levels", "low", "step")
LEVELS = {8: torch.uint8, 16: torch.uint16}


def quantise(flat: Mapping[str, Tensor], bits: int) -> Flat:
    """Replace models by levels, smallest values and steps; leave all that is short as it is."""
    if bits not in LEVELS:
        return dict(flat)
    small: Flat = {}
    for name, tensor in flat.items():
        if tensor.dtype == torch.float32 and tensor.dim() == 1 and tensor.numel() >= BLOCK:
            small[f"{name}:levels"], small[f"{name}:low"], small[f"{name}:step"] = _to_levels(tensor, bits)
        else:
            small[name] = tensor
    return small


def restore(flat: Mapping[str, Tensor]) -> Flat:
    """Undo `quantise`, up to its error; refuse parts of nothing, and a model in both forms."""
    restored: Flat = {}
    for name, tensor in flat.items():
        owner, colon, part = name.rpartition(":")
        if not colon:
            restored[name] = tensor
        elif part not in PARTS or f"{owner}:levels" not in flat or owner in flat:
            raise MessageError(f"'{name}' is no part of a quantised form")
        elif part == "levels":
            restored[owner] = _from_levels(owner, flat)
    return restored


def _to_levels(tensor: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    blocks = _blocks(tensor.double())
    low, high = blocks.aminmax(dim=1)
    low, step = low.float(), ((high - low) / (2**bits - 1)).float()
    levels = (blocks - low.double()[:, None]) / step.double()[:, None]
    levels = torch.nan_to_num(levels).round().clamp(0, 2**bits - 1)  # a block of equal values has no step
    return levels.flatten()[: tensor.numel()].to(LEVELS[bits]), low, step


def _from_levels(name: str, flat: Mapping[str, Tensor]) -> Tensor:
    try:
        levels, low, step = (flat[f"{name}:{part}"] for part in PARTS)
    except KeyError:
        raise MessageError(f"'{name}' lacks a part of its quantised form") from None
    count = -(-levels.numel() // BLOCK)
    are_bounds = all(bound.dtype == torch.float32 and bound.shape == (count,) for bound in (low, step))
    if levels.dtype not in LEVELS.values() or levels.dim() != 1 or not are_bounds:
        raise MessageError(f"'{name}' is not of the quantised form")
    values = torch.empty(levels.numel())
    for block in range(0, count, RESTORED_AT_ONCE):  # in float64, a whole model would need four times its memory
        part, rows = slice(block * BLOCK, (block + RESTORED_AT_ONCE) * BLOCK), slice(block, block + RESTORED_AT_ONCE)
        restored = low[rows].double()[:, None] + _blocks(levels[part].double()) * step[rows].double()[:, None]
        values[part] = restored.flatten()[: levels[part].numel()]
    return values


def _blocks(vector: Tensor) -> Tensor:
    """Cut a vector into rows, the last one filled up with its last value."""
    missing = -vector.numel() % BLOCK
    return torch.cat((vector, vector[-1:].expand(missing))).view(-(-vector.numel() // BLOCK), BLOCK)
