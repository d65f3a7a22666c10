"""FedPer (Arivazhagan, Aggarwal, Singh, Choudhary; 2019): FedAvg under a head of each client's own.

Base and head are trained together; the base is averaged, and the last layers never leave a client.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.registry import register
from fedfomo.core.options import Count
from fedfomo.core.parameters import Layout
from fedfomo.errors import require


@register("fedper", paper="Arivazhagan et al., 2019")
@dataclass(frozen=True)
class FedPer(FedAvg):
    """Share all layers but the last, which every client keeps for itself; both are trained together."""

    sends: ClassVar[str] = "1 model without its last layers each way; up with its number of examples"
    compute: ClassVar[str] = "as FedAvg"

    head_layers: Count = 1
    """How many of the last layers every client keeps."""

    def keeps(self, module: nn.Module) -> Collection[str]:
        """Keep the last layers."""
        layout = Layout.of(module)
        layers = [layer.name for layer in layout.layers()]
        many = f"head_layers is {self.head_layers}, of {len(layers)} layers: nothing would be left to share"
        require(self.head_layers < len(layers), many)
        return [slot.name for slot in layout.slots if slot.owner in layers[-self.head_layers :]]
