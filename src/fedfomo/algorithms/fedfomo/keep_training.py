"""FedFomo that does not lose training: beyond the paper, and named after the one thing that it changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfomo.algorithms.fedfomo.core import FedFomo
from fedfomo.algorithms.fedfomo.state import Memory
from fedfomo.algorithms.registry import register
from fedfomo.core.client import Client


def fall_back_to_own(mixing: Tensor) -> Tensor:
    """Return w*, or if nobody helps, all of the client's own model, which is the first candidate."""
    if bool((mixing > 0).any()):
        return mixing
    kept = torch.zeros_like(mixing)
    kept[0] = 1.0
    return kept


@register("fedfomo-keep-training")
@dataclass(frozen=True)
class FedFomoKeepTraining(FedFomo):
    """FedFomo whose clients go on from their own training where no model helps, not from their last mixture."""

    def accept(
        self, client: Client, memory: Memory, candidates: Sequence[Tensor], losses: Tensor, mixing: Tensor
    ) -> Tensor:
        """Give the client's own model all weight if no candidate has any; before any training there is none to keep."""
        return mixing if torch.equal(memory.own, memory.reference) else fall_back_to_own(mixing)
