"""MAPPER, model interpolation (Mansour, Mohri, Ro, Suresh; 2020).

Every client predicts with a mixture of a model of its own and the common one, λ · h_l + (1 − λ) · h_c. Both are
trained through the mixture; the common one is averaged as in FedAvg; λ is the client's choice.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from fedfomo.algorithms.fedavg import AveragingServer, Download, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Records, Steps, Trained
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.messages import Parameters
from fedfomo.core.options import Count, Fraction
from fedfomo.errors import require


class Mixture(nn.Module):
    """Two copies of a network that answer together."""

    share: Tensor

    def __init__(self, module: nn.Module, of_probabilities: bool) -> None:
        super().__init__()
        self.own = module
        self.common = copy.deepcopy(module)
        self.register_buffer("share", torch.tensor(0.5))  # λ
        self._of_probabilities = of_probabilities

    def forward(self, inputs: Tensor) -> Tensor:
        """Return λ · own + (1 − λ) · common; if these are to be probabilities, the logarithm of the mixture."""
        own, common = self.own(inputs), self.common(inputs)
        if not self._of_probabilities:
            return self.share * own + (1 - self.share) * common
        weighted = (self.share.log() + own.log_softmax(dim=1), (1 - self.share).log() + common.log_softmax(dim=1))
        return torch.logaddexp(*weighted)


def interpolate(own: Tensor, common: Tensor, share: float) -> Tensor:
    """Return λ θ_l + (1 − λ) θ_c."""
    return (share * own.double() + (1 - share) * common.double()).float()


def best_share(shares: Sequence[float], losses: Tensor, otherwise: float) -> float:
    """Return the λ of least validation loss, the smallest among equals; `otherwise` if nothing is known."""
    if bool(losses.isnan().all()):
        return otherwise
    return shares[int(losses.nan_to_num(nan=math.inf).argmin())]


@dataclass(frozen=True)
class Memory:
    """A client's own model, once it has one, and how much of it there is in its mixture."""

    own: Parameters | None  # h_l
    share: float  # λ


@register("mapper", paper="Mansour et al., 2020")
@dataclass(frozen=True)
class Mapper(AveragingServer[Memory]):
    """Predict with a mixture of a personal and a common model; validation sets their shares."""

    compute: ClassVar[str] = "as FedAvg in the warm-up, then up to num_shares × FedAvg; all through two networks"
    evaluates_on: ClassVar[Records] = "validation"

    mix: Literal["probabilities", "outputs", "parameters"] = "probabilities"
    """What is mixed: class probabilities, the networks' outputs as they are (regression), or parameters."""
    lowest_share: Fraction = 0.0
    """Least share of the personal model (λ) to choose from."""
    highest_share: Fraction = 1.0
    """Greatest share of the personal model to choose from."""
    num_shares: Count = 5
    """How many shares there are to choose from, evenly spaced."""
    warm_up: Fraction = 0.5
    """Share of the planned rounds in which the common model is trained alone; own models then start from it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.lowest_share, self.highest_share
        require(low <= high, f"lowest_share must be at most highest_share, not {low} and {high}")

    @property
    def steps_needed(self) -> Steps:
        """Mixing by "parameters" needs single gradient steps; the other ways to mix train as the trainer does."""
        return "gradients" if self.mix == "parameters" else "trainings"

    @property
    def shares(self) -> list[float]:
        """The values of λ to choose from."""
        return torch.linspace(self.lowest_share, self.highest_share, self.num_shares, dtype=torch.float64).tolist()

    def network(self, module: nn.Module) -> nn.Module:
        """Put two copies side by side, unless it is parameters that are mixed."""
        return module if self.mix == "parameters" else Mixture(module, self.mix == "probabilities")

    def start_client(self, start: FederationInfo) -> Memory:
        """Use the common model alone, until there is a personal one."""
        return Memory(None, self.lowest_share)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Mix the personal model with the new common one, in the shares with the lowest validation loss."""
        if memory.own is None:
            return Personalised(self._mixture(client, download.model, download.model, memory.share), memory)
        mixtures = [self._mixture(client, memory.own, download.model, share) for share in self.shares]
        share = best_share(self.shares, client.validation_losses(mixtures), otherwise=memory.share)
        return Personalised(mixtures[self.shares.index(share)], Memory(memory.own, share))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train the personal model for each λ and keep that of lowest validation loss; then train the common one."""
        own, share = memory.own, 0.0
        # Departs from the paper: a λ of 1, which wins while both models are raw, would leave the common one so.
        if client.round >= self.warm_up * client.start.rounds:
            own, share = self._best_own(client, download.model if own is None else own, download.model)
        common = self._trained(client, "common", download.model if own is None else own, download.model, share)
        model = self._mixture(client, common if own is None else own, common, share)
        return Trained(Upload(common, len(client.data.train)), Memory(own, share), model)

    def _best_own(self, client: Client, own: Tensor, common: Tensor) -> tuple[Tensor, float]:
        """Train the personal model once for each λ; return that of lowest validation loss, or of the middle λ."""
        owns = [self._trained(client, "own", own, common, share) for share in self.shares]
        mixtures = [self._mixture(client, own, common, share) for own, share in zip(owns, self.shares, strict=True)]
        middle = self.shares[len(self.shares) // 2]
        share = best_share(self.shares, client.validation_losses(mixtures), otherwise=middle)
        return owns[self.shares.index(share)], share

    def _mixture(self, client: Client, own: Tensor, common: Tensor, share: float) -> Tensor:
        """Return the parameters that the client's network needs to be the mixture."""
        if self.mix == "parameters":
            return interpolate(own, common, share)
        layout = client.model.layout
        theta = torch.empty(layout.size)
        theta[layout.coordinates_below("own")] = own
        theta[layout.coordinates_below("common")] = common
        layout.views(theta)["share"].fill_(share)
        return theta

    def _trained(
        self, client: Client, part: Literal["own", "common"], own: Tensor, common: Tensor, share: float
    ) -> Tensor:
        """Train one part through the mixture while the other stands still; a part without a share stands still too."""
        before, weight = (own, share) if part == "own" else (common, 1 - share)
        if weight == 0:
            return before
        mixture = self._mixture(client, own, common, share)
        if self.mix == "parameters":
            return train_through(client, before, mixture, weight)
        coordinates = client.model.layout.coordinates_below(part)
        moving = torch.zeros(client.model.layout.size, dtype=torch.bool)
        moving[coordinates] = True
        return client.train(mixture, trainable_mask=moving[: client.num_trainable])[coordinates]


def train_through(client: Client, part: Tensor, mixture: Tensor, weight: float) -> Tensor:
    """Move a part of a mixture of parameters by SGD on the mixture's loss: θ_part ← θ_part − η · weight · ∇ℓ(θ)."""
    part, mixture, descent = part.clone(), mixture.clone(), client.descent()
    for batch in descent.batches():
        gradient = descent.gradient(mixture, batch)
        descent.step(part, gradient, weight, follower=mixture)
    part[client.num_trainable :] = mixture[client.num_trainable :]
    return part
