"""APFL (Deng, Kamani, Mahdavi, 2020): a blend of one's own model and the global one, in a share that is learnt.

A client uses v̄ = αv + (1 − α)w. Its copy of w trains as in FedAvg, v descends on the loss of the blend, and so
does α, once a round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import AveragingServer, Download, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Steps, Trained
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.messages import Parameters
from fedfomo.core.options import Fraction


@dataclass(frozen=True)
class Memory:
    """A client's own model and its share of the blend."""

    own: Parameters  # v_i
    share: float  # α_i


def blend(own: Tensor, shared: Tensor, share: float) -> Tensor:
    """v̄ = αv + (1 − α)w."""
    return own * share + shared * (1 - share)


def next_share(share: float, own: Tensor, shared: Tensor, gradient: Tensor, rate: float) -> float:
    """α ← α − η⟨v − w, ∇f(v̄)⟩, kept within [0, 1]."""
    num_trainable = len(gradient)
    slope = torch.dot((own - shared)[:num_trainable].double(), gradient.double())
    return min(1.0, max(0.0, share - rate * float(slope)))


@register("apfl", paper="Deng et al., 2020")
@dataclass(frozen=True)
class Apfl(AveragingServer[Memory]):
    """Blend the client's own model with the global one, in a share that each client learns."""

    compute: ClassVar[str] = "2 × FedAvg"
    steps: ClassVar[Steps] = "gradients"

    alpha: Fraction = 0.5  # α
    """The personal model's share of the blend, at the start or throughout."""
    learns_share: bool = True
    """Adapt the share on the training data, once a round."""

    def start_client(self, start: FederationInfo) -> Memory:
        """Own the common initial model."""
        return Memory(start.initial, self.alpha)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Blend the personal model with the global one."""
        if len(client.data.train) == 0:
            # Departs from the paper: a personal model that cannot learn has weight 0.
            return Personalised(download.model, memory)
        return Personalised(blend(memory.own, download.model, memory.share), memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train the copy of the global model on its own loss, and the personal model on that of the blend: it stays."""
        own, shared, share = memory.own.clone(), download.model.clone(), memory.share
        num_trainable, rate, descent = client.num_trainable, client.learning_rate, client.descent()
        for step, batch in enumerate(descent.batches()):
            blended = blend(own, shared, share)
            gradient = descent.gradient(blended, batch, local_only=not client.keeps_part)
            own[num_trainable:] = blended[num_trainable:]  # its statistics are those of the blend that it is used in
            adapted = next_share(share, own, shared, gradient, rate) if step == 0 and self.learns_share else share
            descent.step(own, gradient, share, of="own")
            descent.step(shared, descent.gradient(shared, batch), of="shared")
            share = adapted
        return Trained(Upload(shared, len(client.data.train)), Memory(own, share), blend(own, shared, share))
