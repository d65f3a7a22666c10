"""How a client trains on its own data.

Torch is imported only once training starts: the command line shows these settings and should not take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedfomo.errors import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedfomo.core.data import Examples
    from fedfomo.core.model import Model


class Penalty(Protocol):
    """A term of a training objective that reads no data."""

    def add_gradient(self, gradient: Tensor, theta: Tensor) -> None:
        """Add the term's gradient at θ; both hold the trainable coordinates only."""
        ...


@dataclass(frozen=True)
class ProximalTerm:
    """The term strength/2 · ‖θ − anchor‖²."""

    anchor: Tensor
    strength: float

    def add_gradient(self, gradient: Tensor, theta: Tensor) -> None:
        """Add strength · (θ − anchor), over the trainable coordinates, to a gradient."""
        gradient.add_(theta - self.anchor[: len(theta)], alpha=self.strength)


@dataclass(frozen=True)
class TrainingJob:
    """One local training: where it starts, on what, for how long, and under which constraints."""

    start: Tensor
    examples: Examples
    round: int
    rng: torch.Generator
    penalty: Penalty | None = None
    epochs: int | None = None  # None: as many as the trainer's
    trainable_mask: Tensor | None = None  # which trainable coordinates may change, as a mask; None: all
    local_only: bool = False  # nothing that comes of it, not even indirectly, ever leaves the client

    def constrain(self, gradient: Tensor, theta: Tensor) -> None:
        """Add the penalty's gradient, and stop the coordinates that may not move; penalties live in main memory."""
        if self.penalty is not None:
            here = gradient.cpu()  # itself, unless it is on another device
            self.penalty.add_gradient(here, theta.cpu())
            gradient.copy_(here)
        if self.trainable_mask is not None:
            gradient.mul_(self.trainable_mask.to(gradient.device))


class LocalTrainer(Protocol):
    """How a client trains: on which batches, with which gradient, with which steps."""

    @property
    def epochs(self) -> int:
        """Passes over the training data each round (E)."""
        ...

    def learning_rate_in(self, round: int) -> float:
        """Return the step size of one round."""
        ...

    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[Examples]:
        """Cut the examples into the batches of several epochs."""
        ...

    def gradient(self, model: Model, batch: Examples) -> Tensor:
        """Return the gradient of the training objective at the loaded parameters; the next call overwrites it."""
        ...

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Return new parameters; the task's are left as they were."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Mini-batch stochastic gradient descent; the defaults are the paper's for CIFAR.

    So `federate` takes batches of 50; on digits, and in federations made by `deploy init`, they are of 20.
    """

    learning_rate: float = 0.1
    """Learning rate of the first round."""
    momentum: float = 0.0
    """Momentum of SGD."""
    weight_decay: float = 1e-4
    """Weight decay (L2 penalty) of SGD."""
    learning_rate_decay: float = 0.99
    """Factor on the learning rate after every round."""
    learning_rate_floor: float = 1e-4
    """The learning rate does not decay below this."""
    batch_size: int = 50
    """Examples per step; the last batch of an epoch may be smaller."""
    epochs: int = 5
    """Passes over a client's training data in a round (E)."""
    augment: bool = False
    """Shift training images by up to 4 pixels and mirror half of them, at random; on for cifar10 and cifar100."""

    def __post_init__(self) -> None:
        for name in (
            "learning_rate",
            "learning_rate_decay",
            "momentum",
            "weight_decay",
            "learning_rate_floor",
        ):
            value = getattr(self, name)
            require(math.isfinite(value) and value >= 0, f"{name} must be a number of at least 0, not {value}")
        require(self.momentum < 1, f"momentum must be below 1, not {self.momentum}: steps would grow without end")
        for name in ("batch_size", "epochs"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, not {value}")

    def learning_rate_in(self, round: int) -> float:
        """Return the step size of one round: constant within it, decayed between rounds, never below the floor."""
        decayed = self.learning_rate * self.learning_rate_decay**round
        return max(decayed, min(self.learning_rate_floor, self.learning_rate))

    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[Examples]:
        """Shuffle the examples anew for every epoch."""
        for _ in range(epochs if len(examples) else 0):
            for batch in examples.shuffled_batches(self.batch_size, rng):
                yield batch.augmented(rng) if self.augment else batch

    def gradient(self, model: Model, batch: Examples) -> Tensor:
        """Return the gradient of loss and weight decay at the loaded parameters."""
        gradient = model.backward(batch)
        if self.weight_decay:
            gradient.add_(model.trainable, alpha=self.weight_decay)
        return gradient

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Run the epochs from the start; with no examples, return it unchanged."""
        return run_sgd(self, self, model, task)


def run_sgd(sgd: Sgd, trainer: LocalTrainer, model: Model, task: TrainingJob) -> Tensor:
    """Take the steps of SGD along a trainer's gradients, on its batches."""
    from fedfomo.core.rng import layer_rng

    step = sgd.learning_rate_in(task.round)
    theta = model.load(task.start)
    velocity: Tensor | None = None
    with layer_rng(task.rng):
        for batch in trainer.batches(task.examples, task.epochs or sgd.epochs, task.rng):
            gradient = trainer.gradient(model, batch)
            task.constrain(gradient, theta)
            if sgd.momentum:
                velocity = gradient.clone() if velocity is None else velocity.mul_(sgd.momentum).add_(gradient)
            theta.sub_(gradient if velocity is None else velocity, alpha=step)
    return model.read()
