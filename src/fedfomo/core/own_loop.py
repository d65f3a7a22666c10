"""A training loop of the user's own: the library hands it a network, data and a context, and takes the network back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset

from fedfomo.core.code_digest import spelled
from fedfomo.core.data import Examples
from fedfomo.core.lazy_data import as_lazy
from fedfomo.core.local_training import LocalTrainer, Penalty, Place, ProximalTerm, Stepper, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import forked_rng, layer_seed
from fedfomo.core.trees import Tree
from fedfomo.errors import InputError, require, require_count


@dataclass
class TrainContext:
    """What a loop may want to know of the training that it is asked for."""

    round: int
    """The round, from 0."""
    rounds: int
    """How many rounds are planned."""
    client: int
    """The client's number."""
    seed: int
    """A seed of this training alone; the default generators of torch, NumPy and Python are seeded already."""
    device: torch.device
    """Where the network is."""
    epochs: int
    """Passes over the data that the method asks for."""
    batch_size: int
    """Examples per step."""
    steps: int
    """Steps that make these epochs."""
    remaining_steps: int
    """Steps of this training and of those in the rounds to come."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """The federation's loss, of outputs and labels: a mean, or a value per example."""
    _model: nn.Module = field(repr=False)
    _layout: Layout = field(repr=False)
    _penalty: Penalty | None = field(repr=False)
    _examples: Examples = field(repr=False)
    _rng: torch.Generator = field(repr=False)
    _is_penalty_asked: bool = False

    def batches(self) -> Iterator[tuple[Tree, Tree]]:
        """Yield inputs and labels of one pass over the data in a new order, on the device."""
        for batch in self._examples.shuffled_batches(self.batch_size, self._rng):
            there = batch.to(self.device)
            yield there.inputs, there.labels

    def penalty(self) -> Tensor:
        """Return what the method adds to the loss, such as the proximal term of `fedprox`, at the network as it is now.

        Its gradient is exact. Its value is that of a proximal term; of other terms only the gradient is known, and the
        value is 0. Without such a term it is 0 and costs nothing.
        """
        self._is_penalty_asked = True
        zero = torch.zeros((), device=self.device)
        if self._penalty is None:
            return zero
        tensors = dict(self._model.named_parameters())
        theta = torch.zeros(self._layout.num_trainable)
        for name, view in self._layout.trainable_views(theta).items():
            view.copy_(tensors[name].detach())
        gradient = torch.zeros_like(theta)
        self._penalty.add_gradient(gradient, theta)
        views = self._layout.trainable_views(gradient)
        linear = sum(((tensors[name] * view.to(self.device)).sum() for name, view in views.items()), start=zero)
        known = self._penalty if isinstance(self._penalty, ProximalTerm) else None
        value = known.strength / 2 * (theta - known.anchor[: len(theta)]).square().sum().item() if known else 0.0
        return linear - linear.detach() + value

    def require_penalty(self) -> None:
        """Refuse a loop that has left out what the method adds to the loss."""
        require(
            self._penalty is None or self._is_penalty_asked,
            "the method adds a term to the loss, and your training loop never asked for it: add context.penalty() to"
            " the loss of every step",
        )


TrainFunction = Callable[[nn.Module, Dataset[Any], TrainContext], None]
"""Trains a network in place: with data[i] = (input, label)."""


@dataclass(frozen=True, repr=False)
class OwnLoop:
    """A user's function that trains a network in place, as a trainer."""

    train_function: TrainFunction
    """Is called as train(model, data, context) and returns nothing."""
    epochs: int = 5
    """Passes over a client's training data in a round, that the context tells."""
    batch_size: int = 50
    """Examples per step, that the context tells."""

    def __repr__(self) -> str:
        return f"OwnLoop({spelled(self.train_function)}, epochs={self.epochs}, batch_size={self.batch_size})"

    def __post_init__(self) -> None:
        require_count("epochs", self.epochs)
        require_count("batch_size", self.batch_size)
        words = "a training loop is a function train(model, data, context)"
        require(callable(self.train_function), f"{words}, not {self.train_function!r}")
        try:
            inspect.signature(self.train_function).bind(None, None, None)
        except TypeError as error:
            raise InputError(f"{words}: {error}") from None

    def learning_rate_in(self, round: int, model: Model | None = None) -> float:
        """Return 0: what step size a loop has, nobody else knows."""
        return 0.0

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Let the loop train a copy of the network, and take its parameters and buffers."""
        model.load(task.start)
        seed = layer_seed(task.rng)
        if len(task.examples) == 0:
            return model.read()
        network = model.network(task.start).to(model.device).train()
        self._hold_still(network, model, task)
        context = self._context(network, model, task, seed)
        lazy = as_lazy(task.examples)
        with forked_rng() as seed_all:
            seed_all(seed)
            if model.device.type != "cpu":
                torch.manual_seed(seed)  # of accelerators too
            returned: Any = self.train_function(network, Subset(lazy.source, lazy.indices.tolist()), context)
        kind = type(returned).__name__
        require(returned is None, f"the training loop returned a {kind}: it must train the network in place")
        context.require_penalty()
        trained = model.adopt(network)
        if task.trainable_mask is not None:
            still = ~task.trainable_mask
            trained[: len(still)][still] = task.start[: len(still)][still]
        return trained

    def _context(self, network: nn.Module, model: Model, task: TrainingJob, seed: int) -> TrainContext:
        epochs, place = task.epochs_of(self), task.place
        steps = epochs * -(-len(task.examples) // self.batch_size)
        rounds = place.rounds if place else task.round + 1
        return TrainContext(
            round=task.round,
            rounds=rounds,
            client=place.client if place else 0,
            seed=seed % 2**32,
            device=model.device,
            epochs=epochs,
            batch_size=self.batch_size,
            steps=steps,
            remaining_steps=steps * max(1, rounds - task.round),
            loss=model.criterion,
            _model=network,
            _layout=model.layout,
            _penalty=task.penalty,
            _examples=task.examples,
            _rng=task.rng,
        )

    def _hold_still(self, network: nn.Module, model: Model, task: TrainingJob) -> None:
        """Freeze the parameters that this training may not move."""
        if task.trainable_mask is None:
            return
        parameters = dict(network.named_parameters())
        for name, view in model.layout.trainable_views(task.trainable_mask).items():
            whole = bool(view.all()) or not bool(view.any())
            require(whole, f"the method moves a part of '{name}' only, which a training loop of your own cannot do")
            parameters[name].requires_grad_(bool(view.all()))

    # What a method asks for that has a loop of its own; such methods are refused before anything is computed.
    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[Examples]:
        """Refuse."""
        raise _refusal()

    def gradient(self, model: Model, batch: Examples) -> Tensor:
        """Refuse."""
        raise _refusal()

    def stepper(self, layout: Layout, round: int, num_examples: int, place: Place | None = None) -> Stepper:
        """Refuse."""
        raise _refusal()


def as_trainer(trainer: Any, name: str = "trainer") -> LocalTrainer:
    """Return a trainer as it is, and a function as a loop of its own; refuse what is neither."""
    if not isinstance(trainer, type):
        if hasattr(trainer, "train"):
            return cast(LocalTrainer, trainer)
        if callable(trainer):
            return OwnLoop(cast(TrainFunction, trainer))
    raise InputError(
        f"{name} must be an object such as fedfomo.Sgd(learning_rate=0.1) or fedfomo.Trainer(…), or a function"
        f" train(model, data, context), not {trainer!r}"
    )


def refuse_ignored_training(module: nn.Module) -> None:
    """Refuse a network that brings its own training, of which nothing would be used."""
    step = getattr(type(module), "training_step", None)
    origin = str(getattr(step, "__module__", "")).partition(".")[0]
    require(
        step is None or origin in ("lightning", "pytorch_lightning"),  # the base class's own does nothing
        f"{type(module).__name__} has a training_step, which would be ignored: give trainer= a function that calls"
        " Lightning (examples/lightning_sites.py), or trainer=fedfomo.Sgd() to train forward() by the loss",
    )


def _refusal() -> InputError:
    return InputError("a training loop of your own gives no single gradient steps: give a fedfomo.Trainer")
