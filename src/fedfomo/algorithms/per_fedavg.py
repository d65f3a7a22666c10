"""Per-FedAvg (Fallah, Mokhtari, Ozdaglar; NeurIPS 2020): a global model that is good after a step of one's own.

Model-agnostic meta-learning among clients: what is minimised is not Σ f_i(w) but Σ f_i(w − α∇f_i(w)). Before it
uses the global model, a client takes such steps on its own training data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import AveragingServer, Download, State, Upload, weighted_average
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Steps, Trained
from fedfomo.core.client import Client, ClientId, GradientSteps
from fedfomo.core.data import Examples
from fedfomo.core.options import Count, NonNegative
from fedfomo.core.vectors import finite_or

PROBE_LENGTH = 1e-2  # δ‖g‖: long enough for float32, short enough for a derivative


def stepped(theta: Tensor, direction: Tensor, size: float) -> Tensor:
    """Return θ − size · direction; the direction has the trainable coordinates only."""
    moved = theta.clone()
    moved[: len(direction)].sub_(direction, alpha=size)
    return moved


def hessian_product(
    probes: tuple[GradientSteps, GradientSteps], theta: Tensor, direction: Tensor, batch: Examples
) -> Tensor:
    """HF: ∇²f(w)g ≈ (∇f(w + δg) − ∇f(w − δg)) / 2δ, with δ‖g‖ the same for every g."""
    length = float(torch.linalg.vector_norm(direction))
    if length == 0:
        return torch.zeros_like(direction)
    delta = PROBE_LENGTH / length
    ahead, behind = (
        probe.gradient(stepped(theta, direction, -side * delta), batch)
        for probe, side in zip(probes, (1, -1), strict=True)
    )
    return (ahead - behind) / (2 * delta)


def roles(batches: Iterator[Examples], num_roles: int) -> Iterator[tuple[Examples, Examples, Examples]]:
    """Deal batches out as D, D′ and D″, which is D′ again if there are two roles; the last deal may have to repeat."""
    while dealt := list(islice(batches, num_roles)):
        yield dealt[0], dealt[min(1, len(dealt) - 1)], dealt[-1]


@register("per-fedavg", paper="Fallah et al., 2020")
@dataclass(frozen=True)
class PerFedAvg(AveragingServer[None]):
    """Train a global model for what it becomes after a few steps on a client's own data."""

    compute: ClassVar[str] = "as FedAvg (hessian-free: 4/3), and personal_epochs"
    steps: ClassVar[Steps] = "gradients"

    variant: Literal["first-order", "hessian-free"] = "first-order"
    """Leave second derivatives out, or take them from differences of gradients."""
    alpha: NonNegative = 0.01  # α
    """Size of the steps that personalise, at most an eighth of the meta-step's size β, which is the learning rate."""
    personal_epochs: Count = 1
    """Passes over the client's training data to personalise the global model."""

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Take the plain mean of the uploads, whatever their numbers of examples; if none arrived, stay."""
        models = [uploads[client].model for client in sorted(uploads)]
        return State(weighted_average(models, [1.0] * len(models)) if models else state.model)

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Take steps w ← w − α∇f_i(w) on the client's training data."""
        model, descent = download.model.clone(), client.descent("personalise", local_only=True)
        for batch in descent.batches(self.personal_epochs):
            model = stepped(model, descent.gradient(model, batch), self.alpha)
        return Personalised(finite_or(model, otherwise=download.model), None)

    def train(self, client: Client, download: Download, memory: None) -> Trained[Upload, None]:
        """Take meta-steps w ← w − β(I − α∇²f_i(w))∇f_i(w − α∇f_i(w)), with or without the Hessian."""
        model, descent = download.model.clone(), client.descent()
        # The same purpose twice: both probes meet the same dropout, so that they differ by their parameters alone.
        probes = client.descent("probe"), client.descent("probe")
        with_hessian = self.variant == "hessian-free"
        for inner, outer, third in roles(descent.batches(), num_roles=3 if with_hessian else 2):
            ahead = stepped(model, descent.gradient(model, inner), self.alpha)
            gradient = descent.gradient(ahead, outer)
            if with_hessian:
                gradient.sub_(hessian_product(probes, model, gradient, third), alpha=self.alpha)
            model[client.num_trainable :] = ahead[client.num_trainable :]
            descent.step(model, gradient)
        return Trained(Upload(model, len(client.data.train)), None, model)
