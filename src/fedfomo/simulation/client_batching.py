"""Who computes what clients ask for: each on its own, or several together.

An algorithm asks its client to train and to evaluate, in plain calls. One by one, a call is answered at once. Together,
the call waits until every client of the group has asked for something; then all of them are answered in one stacked
computation. Clients never run at the same time: one runs until it asks or is done, and then the next.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from greenlet import GreenletExit, greenlet
from torch import Tensor

from fedfomo.core.client import Evaluator
from fedfomo.core.data import Examples
from fedfomo.core.local_training import LocalTrainer, Place, Sgd, Stepper, TrainingJob
from fedfomo.core.model import Model, Score
from fedfomo.core.parameters import Layout
from fedfomo.core.vectorised import Stack

ClientRound = Callable[[], Any]


@dataclass
class Timings:
    """Where time went."""

    training: float = 0.0
    scoring: float = 0.0
    all: float = 0.0

    def add(self, other: Timings) -> None:
        """Add what somebody else spent."""
        self.training += other.training
        self.scoring += other.scoring
        self.all += other.all

    def since(self, before: Timings) -> Timings:
        """Return what was spent after an earlier reading."""
        return Timings(self.training - before.training, self.scoring - before.scoring, self.all - before.all)

    @contextmanager
    def counted(self, what: str) -> Generator[None]:
        """Count the time of a block."""
        started = time.perf_counter()
        yield
        setattr(self, what, getattr(self, what) + time.perf_counter() - started)


class ClientCompute(ABC):
    """A trainer and an evaluator for clients, and whatever else needs the network."""

    def __init__(self, model: Model, trainer: LocalTrainer, evaluator: Evaluator | None = None) -> None:
        self.seconds = Timings()
        self._evaluator = evaluator  # None: losses are exact
        self._model = model
        self._trainer = trainer

    @property
    def epochs(self) -> int:
        """Passes over the training data each round."""
        return self._trainer.epochs

    def learning_rate_in(self, round: int, model: Model | None = None) -> float:
        """Return the step size of one round, for a model."""
        return self._trainer.learning_rate_in(round, model)

    def stepper(self, layout: Layout, round: int, num_examples: int, place: Place | None = None) -> Stepper:
        """Return the steps of one training."""
        return self._trainer.stepper(layout, round, num_examples, place)

    def batches(self, examples: Examples, epochs: int, rng: torch.Generator) -> Iterator[Examples]:
        """Cut the examples into the batches of several epochs."""
        return self._trainer.batches(examples, epochs, rng)

    def gradient(self, model: Model, batch: Examples) -> Tensor:
        """Return the gradient of the training objective at the loaded parameters."""
        with self.seconds.counted("training"):
            return self._trainer.gradient(model, batch)

    def losses(self, model: Model, thetas: Sequence[Tensor], examples: Examples) -> Tensor:
        """Return each θ's mean loss."""
        if self._evaluator is not None:
            with self.seconds.counted("scoring"):
                return self._evaluator.losses(model, thetas, examples)
        return torch.tensor(self.mean_losses([(theta, examples) for theta in thetas]), dtype=torch.float64)

    @abstractmethod
    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Return new parameters."""

    @abstractmethod
    def scores(self, pairs: Sequence[tuple[Tensor, Examples]]) -> list[Score]:
        """Score every θ on its examples."""

    @abstractmethod
    def mean_losses(self, pairs: Sequence[tuple[Tensor, Examples]]) -> list[float]:
        """Return the loss of every θ on its examples; no metric is computed for it."""

    @abstractmethod
    def run(self, clients: Sequence[ClientRound]) -> list[Any]:
        """Let every client do its part of a round."""


class SequentialCompute(ClientCompute):
    """Answers every client at once, to the bit as it would be anywhere else."""

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Train now."""
        with self.seconds.counted("training"):
            return self._trainer.train(model, task)

    def scores(self, pairs: Sequence[tuple[Tensor, Examples]]) -> list[Score]:
        """Score now."""
        with self.seconds.counted("scoring"):
            return [self._model.score(theta, examples) for theta, examples in pairs]

    def mean_losses(self, pairs: Sequence[tuple[Tensor, Examples]]) -> list[float]:
        """Evaluate now."""
        with self.seconds.counted("scoring"):
            if len({id(examples) for _, examples in pairs}) == 1 and pairs[0][1].is_lazy:
                return self._model.mean_losses([theta for theta, _ in pairs], pairs[0][1])
            return [self._model.loss(theta, examples) for theta, examples in pairs]

    def run(self, clients: Sequence[ClientRound]) -> list[Any]:
        """Run one client after the other."""
        return [run() for run in clients]


class BatchedCompute(ClientCompute):
    """Waits until all have asked, and answers them in one computation."""

    def __init__(self, model: Model, trainer: Sgd, stack: Stack) -> None:
        super().__init__(model, trainer)
        self._sgd = trainer
        self._stack = stack
        self._playing: _ClientCoroutine | None = None

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Train with the others."""
        return self._ask(task)

    def scores(self, pairs: Sequence[tuple[Tensor, Examples]]) -> list[Score]:
        """Score with the others."""
        return self._ask(_Scoring(pairs, is_measured=True))

    def mean_losses(self, pairs: Sequence[tuple[Tensor, Examples]]) -> list[float]:
        """Evaluate with the others."""
        return [score.loss for score in self._ask(_Scoring(pairs, is_measured=False))]

    def run(self, clients: Sequence[ClientRound]) -> list[Any]:
        """Run all clients, each up to its next request, and fulfil their requests, until none is left."""
        coroutines = [_ClientCoroutine(run) for run in clients]
        waiting = coroutines
        try:
            while waiting:
                for coroutine in waiting:
                    self._playing = coroutine
                    coroutine.resume()
                waiting = [coroutine for coroutine in waiting if coroutine.request is not None]
                self._answer(waiting)
        finally:
            for coroutine in coroutines:
                coroutine.dismiss()
        return [coroutine.result for coroutine in coroutines]

    def _ask(self, request: Any) -> Any:
        if self._playing is None:
            raise RuntimeError("nobody is running")
        return self._playing.ask(request)

    def _answer(self, coroutines: Sequence[_ClientCoroutine]) -> None:
        training = [coroutine for coroutine in coroutines if isinstance(coroutine.request, TrainingJob)]
        scoring = [coroutine for coroutine in coroutines if isinstance(coroutine.request, _Scoring)]
        if training:
            with self.seconds.counted("training"):
                trained = self._stack.train(self._sgd, [coroutine.request for coroutine in training])
            for coroutine, theta in zip(training, trained, strict=True):
                coroutine.answer = theta
        if scoring:
            with self.seconds.counted("scoring"):
                asked = [(pair, c.request.is_measured) for c in scoring for pair in c.request.pairs]
                scores = iter(self._stack.score([pair for pair, _ in asked], [measured for _, measured in asked]))
            for coroutine in scoring:
                coroutine.answer = [next(scores) for _ in coroutine.request.pairs]


@dataclass(frozen=True)
class _Scoring:
    """Models that a client wants scored, each on a set of examples."""

    pairs: Sequence[tuple[Tensor, Examples]]
    is_measured: bool  # False: by their losses alone


class _ClientCoroutine(greenlet):
    """A client with a call stack of its own, which runs only while no other does."""

    def __init__(self, run: ClientRound) -> None:
        super().__init__(run)
        self.request: Any = None
        self.answer: Any = None
        self.result: Any = None

    def resume(self) -> None:
        """Run until the client asks for something, or is done; raise what it raised."""
        self.result = self.switch()

    def ask(self, request: Any) -> Any:
        """Called by the client: let others run, and return the answer once there is one."""
        self.request = request
        # Torch keeps this switch per thread, and all coroutines share one.
        records_gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        cast(greenlet, self.parent).switch()
        torch.set_grad_enabled(records_gradients)
        self.request = None
        return self.answer

    def dismiss(self) -> None:
        """Unwind a client that nobody waits for any more."""
        if not self.dead:
            self.throw(GreenletExit)
