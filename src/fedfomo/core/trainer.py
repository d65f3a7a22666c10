"""Training with any torch optimiser, its schedule and its clipping."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fedfomo.core.code_digest import spelled
from fedfomo.core.data import Examples
from fedfomo.core.device import autocast, refuse_slow_bfloat16
from fedfomo.core.local_training import LocalTrainer, Place, Stepper, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.optimizer_state import encode_state, load_state
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import forked_rng, layer_rng
from fedfomo.errors import InputError, require, require_count


@dataclass(frozen=True, repr=False)
class Trainer:
    """Mini-batch training by any torch optimiser.

    `Trainer(lambda params: torch.optim.AdamW(params, 3e-4), schedule=torch.optim.lr_scheduler.CosineAnnealingLR)`
    """

    optimizer: Callable[[list[nn.Parameter]], Optimizer]
    """Makes the optimiser from the parameters that train."""
    schedule: Callable[..., LRScheduler] | None = None
    """Makes a schedule, stepped after every batch, from the optimiser, or from it and the number of steps: of one
    training, or with keep_state of the whole run."""
    epochs: int = 5
    """Passes over a client's training data in a round."""
    batch_size: int = 50
    """Examples per step; the last batch of an epoch may be smaller."""
    clip: float | None = None
    """Norm to which the gradient of each step is clipped."""
    amp: bool = False
    """Compute the loss in bfloat16 where torch's autocast does so; parameters stay float32."""
    precision: Literal["float32", "bf16"] | None = None
    """bf16 is amp=True by another name; by default it is as amp says."""
    transform: Callable[[Any], Any] | None = None
    """Is applied to the input of every training example, each time anew; torch's random numbers come from the seed."""
    num_workers: int = 0
    """Processes that read the examples of a lazy data set."""
    keep_state: bool = False
    """Keep the state of optimiser and schedule at the client from round to round; else each training starts afresh."""

    def __post_init__(self) -> None:
        is_maker = callable(self.optimizer) and not isinstance(self.optimizer, Optimizer)
        example = "lambda params: torch.optim.AdamW(params, 3e-4)"
        require(is_maker, f"optimizer must be a function of the parameters, such as {example}, not {self.optimizer!r}")
        for name in ("schedule", "transform"):
            value = getattr(self, name)
            require(value is None or callable(value), f"{name} must be a function, not {value!r}")
        for name, least in (("epochs", 1), ("batch_size", 1), ("num_workers", 0)):
            require_count(name, getattr(self, name), least)
        require(self.clip is None or self.clip > 0, f"clip must be above 0, not {self.clip}")
        known = self.precision in (None, "float32", "bf16")
        require(known, f"precision must be float32 or bf16, not {self.precision!r}: float16 would need loss scaling")
        is_clear = not self.amp or self.precision != "float32"
        require(is_clear, "amp=True computes in bfloat16, and precision says float32: leave out one of them")

    def __repr__(self) -> str:
        given = [(field.name, getattr(self, field.name)) for field in fields(self)]
        usual = {**_DEFAULTS, "precision": "float32" if self.precision else None}  # which mean the same
        shown = [f"{name}={spelled(value)}" for name, value in given if name == "optimizer" or value != usual[name]]
        return f"Trainer({', '.join(shown)})"

    @property
    def autocasts(self) -> bool:
        """Whether losses are computed in bfloat16."""
        return self.amp or self.precision == "bf16"

    def check(self, model: Model) -> None:
        """Refuse, before anything is computed, an optimiser or a schedule that does not work with a model."""
        if self.autocasts:
            refuse_slow_bfloat16(model.device)
        theta = model.load(model.read())
        values = theta.clone()
        where = [parameter.data_ptr() for parameter in model.parameters]
        try:
            optimizer, schedule = self._make(model.parameters, num_steps=2)
            model.set_gradient(torch.zeros_like(theta))
            optimizer.step()
            if schedule is not None:
                schedule.step()
        except InputError:
            raise
        except Exception as error:  # whatever a user's own function raises
            hint = (
                ": one that evaluates the loss several times a step cannot be used" if "closure" in str(error) else ""
            )
            raise InputError(
                f"the optimizer cannot train this model ({type(error).__name__}: {error}){hint}"
            ) from error
        is_in_place = [parameter.data_ptr() for parameter in model.parameters] == where
        require(is_in_place, f"{type(optimizer).__name__} replaces the parameters' memory instead of writing into it")
        if self.keep_state:
            encode_state(optimizer, schedule)
        theta.copy_(values)

    def learning_rate_in(self, round: int, model: Model | None = None) -> float:
        """Return the optimiser's first step size."""
        parameters = [nn.Parameter(torch.zeros(2, 2))] if model is None else model.parameters
        return float(self._make(parameters, num_steps=1)[0].param_groups[0]["lr"])

    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[Examples]:
        """Shuffle the examples anew for every epoch."""
        examples = examples.loaded_by(self.num_workers) if self.num_workers else examples
        for _ in range(epochs if len(examples) else 0):
            yield from examples.shuffled_batches(self.batch_size, rng)

    def gradient(self, model: Model, batch: Examples) -> Tensor:
        """Return the gradient of the loss at the loaded parameters."""
        return model.backward(self.transformed(batch), self._autocast(model))

    def vary(self, batch: Examples, rng: torch.Generator) -> Examples:
        """Return the batch: a transform waits until it can be read."""
        return batch

    def transformed(self, batch: Examples) -> Examples:
        """Return the batch with each input as the transform makes it."""
        if self.transform is None:
            return batch
        seed = int(torch.randint(2**62, ()))  # of the default generator, which trainings seed: another for each batch
        with forked_rng() as seed_all:
            seed_all(seed)
            return batch.transformed(self.transform)

    def regularise(self, gradient: Tensor, model: Model) -> Tensor:
        """Return the gradient: weight decay is the optimiser's."""
        return gradient

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Run the epochs from the start; with no examples, return it unchanged."""
        return self.descend(self, model, task)

    def descend(self, source: LocalTrainer, model: Model, task: TrainingJob) -> Tensor:
        """Take the optimiser's steps along the gradients of a source, on its batches."""
        theta, epochs, sent = model.load(task.start), task.epochs_of(self), model.layout.num_trainable
        still = None if task.trainable_mask is None else ~task.trainable_mask.to(theta.device)
        fixed = theta[:sent].clone()
        optimizer, schedule = self._begin(model.parameters, epochs, len(task.examples), task.place)
        with layer_rng(task.rng, model.device):
            for batch in source.batches(task.examples, epochs, task.rng):
                gradient = source.gradient(model, batch)
                task.constrain(gradient[:sent], theta[:sent])
                self._clip(gradient)
                model.set_gradient(gradient)
                optimizer.step()
                if schedule is not None:
                    schedule.step()
                if still is not None:  # momentum and weight decay move even what has no gradient
                    theta[:sent] = torch.where(still, fixed, theta[:sent])
        return model.read()

    def stepper(self, layout: Layout, round: int, num_examples: int, place: Place | None = None) -> Stepper:
        """Return an optimiser of its own for a method that computes its gradients itself."""
        values, gradients = torch.zeros(2, layout.num_trainable)
        parameters: list[nn.Parameter] = []
        for view, gradient in zip(*(layout.trainable_views(v).values() for v in (values, gradients)), strict=True):
            parameters.append(nn.Parameter(view))
            parameters[-1].grad = gradient
        optimizer, schedule = self._begin(parameters, self.epochs, num_examples, place)

        def step(theta: Tensor, gradient: Tensor, weight: float = 1.0, follower: Tensor | None = None) -> None:
            before = theta.clone()
            values.copy_(theta)
            gradients.copy_(gradient).mul_(weight)
            self._clip(gradients)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            theta.copy_(values)
            if follower is not None:
                follower.add_(theta - before, alpha=weight)

        return step

    def _begin(
        self, parameters: list[nn.Parameter], epochs: int, num_examples: int, place: Place | None
    ) -> tuple[Optimizer, LRScheduler | None]:
        """Make the optimiser and the schedule of one training, in the state in which the client keeps them, if any."""
        steps = epochs * -(-num_examples // self.batch_size)
        if not self.keep_state or place is None:
            return self._make(parameters, steps)
        optimizer, schedule = self._make(parameters, steps * place.rounds)
        kept = place.local.of(place.name)
        if kept:
            load_state(optimizer, schedule, kept)
        place.local.keep(place.name, lambda: encode_state(optimizer, schedule))
        return optimizer, schedule

    def _make(self, parameters: list[nn.Parameter], num_steps: int) -> tuple[Optimizer, LRScheduler | None]:
        optimizer = self.optimizer(parameters)
        is_optimizer = isinstance(optimizer, Optimizer)  # pyright: ignore[reportUnnecessaryIsInstance]
        require(is_optimizer, f"optimizer gave a {type(optimizer).__name__}, not a torch optimiser")
        if self.schedule is None:
            return optimizer, None
        arguments: tuple[Any, ...] = (optimizer, max(1, num_steps)) if _takes_steps(self.schedule) else (optimizer,)
        schedule = self.schedule(*arguments)
        is_schedule = isinstance(schedule, LRScheduler) and not isinstance(schedule, ReduceLROnPlateau)  # pyright: ignore[reportUnnecessaryIsInstance]
        require(is_schedule, f"schedule gave a {type(schedule).__name__}: it must be an LRScheduler of steps alone")
        return optimizer, schedule

    def _clip(self, gradient: Tensor) -> None:
        if self.clip is not None:
            gradient.mul_((self.clip / gradient.norm().clamp(min=1e-12)).clamp(max=1.0))

    def _autocast(self, model: Model) -> AbstractContextManager[Any]:
        return autocast(model.device, "bf16" if self.autocasts else "float32")


_DEFAULTS = {field.name: field.default for field in fields(Trainer)}


def _takes_steps(schedule: Callable[..., LRScheduler]) -> bool:
    """Tell whether a schedule asks for two arguments, the optimiser and the number of steps."""
    parameters = inspect.signature(schedule).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(needed) > 1
