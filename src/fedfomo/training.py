"""How a client trains on its own data.

Torch is imported only once training starts: the command line shows these settings and should not take seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedfomo.errors import require

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedfomo.examples import Examples
    from fedfomo.model import Model


@dataclass(frozen=True)
class Pull:
    """The term strength/2 · ‖θ − anchor‖² of a training objective; it reads no data."""

    anchor: Tensor
    strength: float

    def add_gradient(self, gradient: Tensor, theta: Tensor) -> None:
        """Add strength · (θ − anchor), over the trainable coordinates, to a gradient."""
        gradient.add_(theta - self.anchor[: len(theta)], alpha=self.strength)


class LocalTrainer(Protocol):
    """Turns a starting point into trained parameters."""

    def train(
        self,
        model: Model,
        start: Tensor,
        examples: Examples,
        round: int,
        rng: torch.Generator,
        pull: Pull | None = None,
    ) -> Tensor:
        """Return new parameters; `start` is left as it was."""
        ...


@dataclass(frozen=True)
class Sgd:
    """Mini-batch stochastic gradient descent; the defaults are the paper's for CIFAR."""

    learning_rate: float = 0.1
    """Step size of the first round."""
    momentum: float = 0.0
    """Share of the previous step kept in the next one."""
    weight_decay: float = 1e-4
    """Strength of the pull of every parameter towards zero."""
    learning_rate_decay: float = 0.99
    """Factor on the step size from round to round."""
    learning_rate_floor: float = 1e-4
    """The step size decays no further than this."""
    batch_size: int = 50
    """Examples a step; the last batch of an epoch may be short."""
    epochs: int = 5
    """Passes over the client's training data each round (E)."""

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
        for name in ("batch_size", "epochs"):
            value = getattr(self, name)
            require(value >= 1, f"{name} must be at least 1, not {value}")

    def learning_rate_in(self, round: int) -> float:
        """Return the step size of one round: constant within it, decayed between rounds, never below the floor."""
        decayed = self.learning_rate * self.learning_rate_decay**round
        return max(decayed, min(self.learning_rate_floor, self.learning_rate))

    def train(
        self,
        model: Model,
        start: Tensor,
        examples: Examples,
        round: int,
        rng: torch.Generator,
        pull: Pull | None = None,
    ) -> Tensor:
        """Run E shuffled epochs from `start`; with no examples, return it unchanged."""
        from fedfomo.randomness import layers_draw_from

        step = self.learning_rate_in(round)
        theta = model.load(start)
        velocity: Tensor | None = None
        with layers_draw_from(rng):
            for _ in range(self.epochs):
                for batch in examples.shuffled_batches(self.batch_size, rng):
                    gradient = model.backward(batch)
                    if self.weight_decay:
                        gradient.add_(theta, alpha=self.weight_decay)
                    if pull is not None:
                        pull.add_gradient(gradient, theta)
                    if self.momentum:
                        velocity = gradient.clone() if velocity is None else velocity.mul_(self.momentum).add_(gradient)
                    theta.sub_(gradient if velocity is None else velocity, alpha=step)
        return model.read()
