"""Clients that fail in a round: some before they have done anything, others by uploading too late.

The server knows neither beforehand: it has chosen them and sent them their downloads. Who drops out is left as it was
before the round. Who is late has worked, remembers it and has paid for it; only the server never hears of it, neither
then nor later, for a round that is closed stays closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from fedfomo.core.client import ClientId
from fedfomo.core.rng import stream


@dataclass(frozen=True)
class Failures:
    """Who fails in one round, in ascending order."""

    dropped: list[ClientId] = field(default_factory=list[ClientId])
    late: list[ClientId] = field(default_factory=list[ClientId])


def draw_failures(
    cohort: Sequence[ClientId], num_clients: int, dropout: float, lateness: float, seed: int, round: int
) -> Failures:
    """Draw every client's fate by itself; who drops out by a small chance does so by every larger one."""
    if dropout == lateness == 0:
        return Failures()
    fates: list[float] = torch.rand(
        num_clients, generator=stream(seed, "failures", round), dtype=torch.float64
    ).tolist()
    dropped = [client for client in sorted(cohort) if fates[client] < dropout]
    late = [client for client in sorted(cohort) if dropout <= fates[client] < dropout + lateness]
    return Failures(dropped, late)
