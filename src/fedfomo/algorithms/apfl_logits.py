"""APFL with blended outputs: the form in which its authors' code runs it.

Where the paper blends parameters, here both networks answer and their logits are blended: αv(x) + (1 − α)w(x).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from fedfomo.algorithms.apfl import Apfl, Memory
from fedfomo.algorithms.fedavg import Download, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Steps, Trained
from fedfomo.core.client import Client
from fedfomo.core.parameters import Layout


class Blend(nn.Module):
    """Two copies of a network and the first one's share of the answer."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.own = network
        self.shared = copy.deepcopy(network)
        self.share = nn.Parameter(torch.zeros(1, device=next(network.parameters()).device))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return αv(x) + (1 − α)w(x)."""
        return self.share * self.own(inputs) + (1 - self.share) * self.shared(inputs)


def places(layout: Layout) -> tuple[Tensor, Tensor, int]:
    """Return where own model, shared model and share lie in the θ of a blend."""
    share = next(slot.start for slot in layout.slots if slot.name == "share")
    return layout.coordinates_below("own"), layout.coordinates_below("shared"), share


def blended(layout: Layout, own: Tensor, shared: Tensor, share: float) -> Tensor:
    """Return the θ of a blend."""
    theta, where = own.new_empty(layout.size), places(layout)
    theta[where[0]], theta[where[1]], theta[where[2]] = own, shared, share
    return theta


@register("apfl-logits", paper="Deng et al., 2020")
@dataclass(frozen=True)
class ApflLogits(Apfl):
    """Blend the outputs of the client's own model and the global one, in a share that each client learns."""

    compute: ClassVar[str] = "4 × FedAvg"
    steps: ClassVar[Steps] = "plain"

    def network(self, module: nn.Module) -> Blend:
        """Let two copies of the network answer together."""
        return Blend(module)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Put the global model beside the personal one."""
        # Departs from the paper: a personal model that cannot learn has weight 0.
        share = memory.share if len(client.data.train) else 0.0
        return Personalised(blended(client.model.layout, memory.own, download.model, share), memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train the copy of the global model on its own loss, and the personal model on that of the blend."""
        all_own, all_shared, share = places(client.model.layout)
        theta = blended(client.model.layout, memory.own, download.model, memory.share)
        rate, descent = client.learning_rate, client.descent()
        own, shared = (where[: client.start.layout.num_trainable] for where in (all_own, all_shared))
        for step, batch in enumerate(descent.batches()):
            alone = theta.clone()
            alone[share] = 0.0  # the gradient with respect to w is then that of its own loss
            gradient = descent.gradient(theta, batch)
            theta[shared] -= rate * descent.gradient(alone, batch)[shared]
            theta[own] -= rate * gradient[own]
            if step == 0 and self.learns_share:
                theta[share] = (theta[share] - rate * gradient[share]).clamp(0.0, 1.0)
        trained = Memory(theta[all_own], float(theta[share]))
        return Trained(Upload(theta[all_shared], len(client.data.train)), trained, theta)
