"""FedALA (Zhang, Hua, Wang, Song, Xue, Ma, Guan; AAAI 2023): learn how much of the global model to take.

Before it trains, a client blends its own model with the global one, coordinate by coordinate: θ_l + (θ_g − θ_l) ⊙ W.
It learns W ∈ [0, 1] by descent of its training loss in the last layers; of the others it takes the global ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from msgspec import Meta
from torch import Tensor

from fedfomo.algorithms.fedavg import AveragingServer, Download, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Records, Steps, Trained
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.messages import Coordinates, Parameters
from fedfomo.core.options import Count, NonNegative

# The first weights are learnt once the last ten losses have a standard deviation below this.
STILL, NUM_LOSSES = 0.1, 10


@dataclass(frozen=True)
class Memory:
    """A client's own model, and how much of each of its last coordinates it takes from the global one."""

    own: Parameters  # θ_l
    weights: Coordinates  # W
    has_blended: bool


def blend(own: Tensor, received: Tensor, weights: Tensor) -> Tensor:
    """θ̂ = θ_l + (θ_g − θ_l) ⊙ W, exact where W is 0 or 1."""
    return torch.lerp(own, received, weights)


def next_weights(weights: Tensor, gradient: Tensor, gap: Tensor, rate: float) -> Tensor:
    """W ← clip(W − η_w ∇ℓ(θ̂) ⊙ (θ_g − θ_l)), between 0 and 1."""
    return (weights - rate * gradient * gap).clamp(0.0, 1.0)


@register("fedala", paper="Zhang et al., 2023")
@dataclass(frozen=True)
class FedAla(AveragingServer[Memory]):
    """Blend the global model into the personal one, with weights learnt coordinate by coordinate, then train."""

    compute: ClassVar[str] = "FedAvg and about 1 epoch a round, more at first"
    steps: ClassVar[Steps] = "gradients"
    evaluates_on: ClassVar[Records] = "training"

    blended_layers: Count = 1  # p
    """How many of the last layers are blended; the others are the global model's."""
    eta: NonNegative = 1.0  # η_w
    """Step size for the weights."""
    share: Annotated[float, Meta(gt=0, le=1)] = 0.8  # s
    """Share of the training examples on which weights are learnt, drawn anew each time."""
    first_epochs: Count = 20
    """Most epochs of learning the first weights; later ones take one epoch."""

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model, ready to take the global one whole."""
        return Memory(start.initial, torch.ones(int(self._is_blended(start).sum())), has_blended=False)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Learn the weights, unless the two models are the same or there is nothing to learn from; then blend."""
        is_blended = self._is_blended(client.start)
        own, received = memory.own[is_blended], download.model[is_blended]
        if len(client.data.train) > 0 and not torch.equal(own, received):
            memory = replace(memory, weights=self._learn(client, download.model, memory), has_blended=True)
        model = _with(download.model, is_blended, blend(own, received, memory.weights))
        return Personalised(model, replace(memory, own=model))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train from the blend."""
        own = client.train(memory.own)
        return Trained(Upload(own, len(client.data.train)), replace(memory, own=own), own)

    def _learn(self, client: Client, received: Tensor, memory: Memory) -> Tensor:
        is_blended = self._is_blended(client.start)
        own, others, weights = memory.own[is_blended], received[is_blended], memory.weights
        train = client.data.train
        order = torch.randperm(len(train), generator=client.random("examples to blend by"))
        chosen = train.take(order[: math.ceil(self.share * len(train))])
        descent = client.descent("blend")
        losses: list[float] = []
        # Departs from the paper: the first learning ends after `first_epochs`, though losses may not be still by then.
        while len(losses) < (1 if memory.has_blended else self.first_epochs):
            for batch in descent.batches(1, chosen):
                model = _with(received, is_blended, blend(own, others, weights))
                gradient = descent.gradient(model, batch)[is_blended[: client.num_trainable]]
                weights = next_weights(weights, gradient, others - own, self.eta)
            blended = _with(received, is_blended, blend(own, others, weights))
            losses += client.training_losses([blended], chosen).tolist()
            if len(losses) > NUM_LOSSES and torch.tensor(losses[-NUM_LOSSES:]).std(correction=0) < STILL:
                break
        return weights

    def _is_blended(self, start: FederationInfo) -> Tensor:
        is_blended = start.layout.mask(start.layout.layers()[-self.blended_layers :])
        is_blended[start.layout.num_trainable :] = False  # no gradient says how to blend buffers
        return is_blended


def _with(theta: Tensor, mask: Tensor, values: Tensor) -> Tensor:
    changed = theta.clone()
    changed[mask] = values
    return changed
