"""FedBN (Li, Jiang, Zhang, Kamp, Dou; ICLR 2021): FedAvg in which batch normalisation is each client's own.

Inputs that look different from client to client have other means and variances in every layer. So weights and
statistics of BatchNorm layers never leave a client; everything else is averaged.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.registry import register


@register("fedbn", paper="Li et al., 2021")
@dataclass(frozen=True)
class FedBn(FedAvg):
    """Share all but batch normalisation, of which every client keeps its own; without such layers, this is FedAvg."""

    sends: ClassVar[str] = "1 model without its BatchNorm layers each way; up with its number of examples"
    compute: ClassVar[str] = "as FedAvg"

    def keeps(self, module: nn.Module) -> Collection[str]:
        """Keep weights and statistics of all BatchNorm layers."""
        layers = [
            (name, layer)
            for name, layer in module.named_modules()
            if isinstance(layer, nn.modules.batchnorm._BatchNorm)  # pyright: ignore[reportPrivateUsage]
        ]
        return [
            f"{name}.{own}" if name else own
            for name, layer in layers
            for own, _ in (*layer.named_parameters(), *layer.named_buffers())
        ]
