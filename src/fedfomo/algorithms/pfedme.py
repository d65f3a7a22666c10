"""pFedMe (T. Dinh, Tran, Nguyen; NeurIPS 2020): personal models that a spring holds near the global one.

A client's objective at w is the Moreau envelope F_i(w) = min_θ f_i(θ) + λ/2 ‖θ − w‖². Its personal model θ_i is
where the minimum lies, found with a few steps for every batch, and ∇F_i(w) = λ(w − θ_i) then moves its copy of w.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import Download, Upload, average_uploads
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Steps, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo, GradientSteps
from fedfomo.core.data import Examples
from fedfomo.core.local_training import ProximalTerm
from fedfomo.core.messages import Parameters
from fedfomo.core.options import Count, NonNegative
from fedfomo.errors import require


@dataclass(frozen=True)
class State:
    """The global model."""

    model: Parameters
    num_trainable: int


@dataclass(frozen=True)
class Memory:
    """A client's personal model, as it last trained it."""

    personal: Parameters | None  # θ_i


def descend_envelope(descent: GradientSteps, personal: Tensor, batch: Examples, pull: ProximalTerm, steps: int) -> None:
    """Take steps θ ← θ − η_p (∇f(θ; batch) + λ(θ − w)), in place."""
    for _ in range(steps):
        gradient = descent.gradient(personal, batch)
        pull.add_gradient(gradient, personal[: len(gradient)])
        descent.step(personal, gradient)


def passes(epochs: int, inner_steps: int) -> list[int]:
    """Return the steps on each batch in every pass over the data: E in all, K in each, what is left in the last."""
    return [min(inner_steps, epochs - done) for done in range(0, epochs, inner_steps)]


@register("pfedme", paper="Dinh et al., 2020")
@dataclass(frozen=True)
class PFedMe(Algorithm[State, Download, Upload, Memory]):
    """Every client's model is drawn to a global one, which follows the clients' models in turn."""

    compute: ClassVar[str] = "as FedAvg, inner_steps of its epochs in one pass"
    steps: ClassVar[Steps] = "gradients"

    lambda_: NonNegative = 1.0  # λ
    """Stiffness of the spring between a personal model and the global one."""
    inner_steps: Count = 2  # K
    """Steps of the personal model on each batch, of the size of the run's learning rate."""
    eta: NonNegative = 0.5  # η
    """Step size of the client's copy of the global model, which goes eta × lambda of the way to the personal one."""
    beta: NonNegative = 1.0  # β
    """Share of the way to the average of the uploads that the global model goes; above 1 it overshoots."""

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self.eta * self.lambda_
        require(share <= 1, f"eta × lambda is {share:g}: above 1 the global model overshoots the personal one")

    def start_server(self, start: FederationInfo) -> State:
        """Start from the common initial model."""
        return State(start.initial, start.layout.num_trainable)

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the global model."""
        return Download(state.model)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Move w ← (1 − β) w + β · average; statistics move to the average at most: variances stay positive."""
        average = average_uploads(uploads, otherwise=state.model)
        model = torch.lerp(state.model, average, self.beta)
        statistics = slice(state.num_trainable, None)
        model[statistics] = torch.lerp(state.model[statistics], average[statistics], min(self.beta, 1.0))
        return State(model, state.num_trainable)

    def start_client(self, start: FederationInfo) -> Memory:
        """Have no personal model yet."""
        return Memory(None)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Use the personal model; who has never trained uses the global one."""
        return Personalised(download.model if memory.personal is None else memory.personal, memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Let the personal model follow the data and the global model, and the copy of the global model follow it."""
        stiffness = client.learning_rate * self.lambda_
        require(stiffness < 2, f"learning rate × lambda is {stiffness:g}: from 2 on, personal models diverge")
        personal, copied, descent = download.model.clone(), download.model, client.descent()
        # Departs from the paper: a round has as many steps as FedAvg's, dealt out in passes of K steps a batch.
        for steps in passes(client.trainer.epochs, self.inner_steps):
            for batch in descent.batches(1):
                pull = ProximalTerm(copied, self.lambda_)
                descend_envelope(descent, personal, batch, pull, steps)
                copied = torch.lerp(copied, personal, self.eta * self.lambda_)  # w − ηλ(w − θ)
        return Trained(Upload(copied, len(client.data.train)), Memory(personal), personal)
