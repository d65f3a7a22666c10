"""Where noise comes from."""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Noise(Protocol):
    """A source of independent draws from the standard normal distribution."""

    def draw(self, size: int) -> Tensor:
        """Return that many draws, in float64."""
        ...


class SeededNoise:
    """Noise that can be drawn again by whoever has the seed: for research, not for a guarantee."""

    def __init__(self, rng: torch.Generator) -> None:
        self._rng = rng

    def draw(self, size: int) -> Tensor:
        """Return that many draws, in float64."""
        return torch.randn(size, generator=self._rng, dtype=torch.float64)


class SystemNoise:
    """Noise made of the operating system's entropy alone, which nobody can draw again."""

    def draw(self, size: int) -> Tensor:
        """Return that many draws, in float64."""
        bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(12)
        return torch.special.ndtri(torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-52))  # never 0, never 1
