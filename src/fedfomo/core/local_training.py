"""How a client trains on its own data.

Torch is imported only once training starts: the command line shows these settings and should not take seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from fedfomo.errors import require, require_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from fedfomo.core.data import Examples
    from fedfomo.core.model import Model
    from fedfomo.core.parameters import Layout


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


@dataclass
class LocalState:
    """What a client's trainer keeps at the client from round to round, beside what its method remembers."""

    before: Mapping[str, Tensor] = field(default_factory=dict[str, "Tensor"])  # as the last round left it
    _counts: dict[str, int] = field(default_factory=dict[str, int])
    _writers: dict[str, Callable[[], Mapping[str, Tensor]]] = field(
        default_factory=dict[str, "Callable[[], Mapping[str, Tensor]]"]
    )

    def name(self, purpose: str) -> str:
        """Name one training: by its purpose, and by how many of this purpose the round has had."""
        number = self._counts.get(purpose, 0)
        self._counts[purpose] = number + 1
        return f"{purpose} {number}"

    def of(self, name: str) -> dict[str, Tensor]:
        """Return what the training of this name left in the client's last round."""
        return {
            key.removeprefix(f"{name}/"): tensor for key, tensor in self.before.items() if key.startswith(f"{name}/")
        }

    def keep(self, name: str, write: Callable[[], Mapping[str, Tensor]]) -> None:
        """Ask, once the round is over, for what this training leaves."""
        self._writers[name] = write

    def after(self) -> dict[str, Tensor]:
        """Return what the next round finds; what belongs to trainings that did not take place stays."""
        mine = {f"{name}/{key}": tensor for name, write in self._writers.items() for key, tensor in write().items()}
        others = {key: tensor for key, tensor in self.before.items() if key.rpartition("/")[0] not in self._writers}
        return {**others, **mine}


@dataclass(frozen=True)
class Place:
    """Which training of a run a training is: what a trainer needs to find its own state, and the run's length."""

    name: str
    rounds: int
    local: LocalState
    client: int = 0
    seed: int = 0


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
    place: Place | None = None

    def epochs_of(self, trainer: LocalTrainer) -> int:
        """Return the passes over the examples: as many as were asked for, or as the trainer makes."""
        return trainer.epochs if self.epochs is None else self.epochs

    def constrain(self, gradient: Tensor, theta: Tensor) -> None:
        """Add the penalty's gradient, and stop the coordinates that may not move; penalties live in main memory."""
        if self.penalty is not None:
            here = gradient.cpu()  # itself, unless it is on another device
            self.penalty.add_gradient(here, theta.cpu())
            gradient.copy_(here)
        if self.trainable_mask is not None:
            gradient.mul_(self.trainable_mask.to(gradient.device))


class Stepper(Protocol):
    """One optimiser's steps along gradients that a method computes itself."""

    def __call__(self, theta: Tensor, gradient: Tensor, weight: float = 1.0, follower: Tensor | None = None) -> None:
        """Step at the trainable coordinates θ, in place, along weight × gradient; a follower moves weight × as far."""
        ...


class LocalTrainer(Protocol):
    """How a client trains: on which batches, with which gradient, with which steps."""

    @property
    def epochs(self) -> int:
        """Passes over the training data each round (E)."""
        ...

    def learning_rate_in(self, round: int, model: Model | None = None) -> float:
        """Return the step size of one round, for a model."""
        ...

    def stepper(self, layout: Layout, round: int, num_examples: int, place: Place | None = None) -> Stepper:
        """Return the steps of one training of what is laid out, for a method with a loop of its own."""
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


class GradientTrainer(LocalTrainer, Protocol):
    """A trainer that steps along gradients of batches, be they its own or clipped and noisy ones."""

    @property
    def batch_size(self) -> int:
        """Examples per step."""
        ...

    def vary(self, batch: Examples, rng: torch.Generator) -> Examples:
        """Return a batch as it is trained on; it may be private."""
        ...

    def transformed(self, batch: Examples) -> Examples:
        """Return a batch that can be read as a user's transform makes it."""
        ...

    def regularise(self, gradient: Tensor, model: Model) -> Tensor:
        """Add to a gradient what reads no records."""
        ...

    def descend(self, source: LocalTrainer, model: Model, task: TrainingJob) -> Tensor:
        """Take the steps of a training along the gradients of a source, on its batches."""
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
            require_count(name, getattr(self, name))

    def learning_rate_in(self, round: int, model: Model | None = None) -> float:
        """Return the step size of one round: constant within it, decayed between rounds, never below the floor."""
        decayed = self.learning_rate * self.learning_rate_decay**round
        return max(decayed, min(self.learning_rate_floor, self.learning_rate))

    def stepper(self, layout: Layout, round: int, num_examples: int, place: Place | None = None) -> Stepper:
        """Return plain steps θ ← θ − η · gradient; momentum is for whole trainings."""
        rate = self.learning_rate_in(round)

        def step(theta: Tensor, gradient: Tensor, weight: float = 1.0, follower: Tensor | None = None) -> None:
            theta.sub_(gradient, alpha=rate * weight)
            if follower is not None:
                follower.sub_(gradient, alpha=rate * weight**2)

        return step

    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[Examples]:
        """Shuffle the examples anew for every epoch."""
        for _ in range(epochs if len(examples) else 0):
            for batch in examples.shuffled_batches(self.batch_size, rng):
                yield self.vary(batch, rng)

    def gradient(self, model: Model, batch: Examples) -> Tensor:
        """Return the gradient of loss and weight decay at the loaded parameters."""
        return self.regularise(model.backward(batch), model)

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Run the epochs from the start; with no examples, return it unchanged."""
        return self.descend(self, model, task)

    def descend(self, source: LocalTrainer, model: Model, task: TrainingJob) -> Tensor:
        """Take the steps of SGD along the gradients of a source, this one or one that adds noise, on its batches."""
        from fedfomo.core.rng import layer_rng

        step = self.learning_rate_in(task.round)
        theta, sent = model.load(task.start), model.layout.num_trainable
        velocity: Tensor | None = None
        with layer_rng(task.rng, model.device):
            for batch in source.batches(task.examples, task.epochs_of(self), task.rng):
                gradient = source.gradient(model, batch)
                task.constrain(gradient[:sent], theta[:sent])
                if self.momentum:
                    velocity = gradient.clone() if velocity is None else velocity.mul_(self.momentum).add_(gradient)
                theta.sub_(gradient if velocity is None else velocity, alpha=step)
        return model.read()

    def vary(self, batch: Examples, rng: torch.Generator) -> Examples:
        """Return the batch as it is trained on."""
        return batch.augmented(rng) if self.augment else batch

    def transformed(self, batch: Examples) -> Examples:
        """Return the batch: there is no transform."""
        return batch

    def regularise(self, gradient: Tensor, model: Model) -> Tensor:
        """Add what reads no records: the gradient of weight decay."""
        return gradient.add_(model.trainable, alpha=self.weight_decay) if self.weight_decay else gradient
