"""θ in two parts, for methods that share one and keep the other."""

from __future__ import annotations

import torch
from torch import Tensor


def join(is_inside: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """Return the θ whose coordinates under the mask are `inside`, and `outside` elsewhere."""
    theta = torch.empty(len(is_inside))
    theta[is_inside] = inside
    theta[~is_inside] = outside
    return theta


def validate_part(name: str, part: Tensor, size: int) -> str | None:
    """Say what is wrong with a part of θ that should have so many coordinates, or return None."""
    return None if len(part) == size else f"'{name}' has {len(part)} coordinates where {size} are shared"
