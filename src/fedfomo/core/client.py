"""What an algorithm may use on a client: its data, training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import LocalState, LocalTrainer, Penalty, Place, Stepper, TrainingJob
from fedfomo.core.model import Model
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import layer_rng, layer_seed, stream

ClientId = int

TRAINING = "train"
"""The purpose of local training, where a method names no other."""


class BudgetError(Exception):
    """A client's privacy budget does not suffice for another query on its records."""


@dataclass(frozen=True)
class FederationInfo:
    """What server and clients know before the first round."""

    initial: Tensor  # θ⁰, the same for all
    layout: Layout
    num_clients: int  # ids are below this; a federation may keep room for clients that join later
    rounds: int  # T: how many are planned
    groups: tuple[int, ...] | None = None  # each client's true distribution, where a scenario knows it
    targets: tuple[int, ...] | None = None  # likewise, of its validation and test data
    present: tuple[ClientId, ...] | None = None  # who is there from the start, as the server knows; None: all of them

    @property
    def members(self) -> tuple[ClientId, ...]:
        """Who is there from the start."""
        return tuple(range(self.num_clients)) if self.present is None else self.present


class Evaluator(Protocol):
    """The one way in which a client's data are read to evaluate models."""

    def losses(self, model: Model, thetas: Sequence[Tensor], examples: Examples) -> Tensor:
        """Return each θ's mean loss; NaN for each if there are no examples."""
        ...


class ExactEvaluator:
    """Returns exact losses."""

    def losses(self, model: Model, thetas: Sequence[Tensor], examples: Examples) -> Tensor:
        """Return each θ's mean loss; NaN for each if there are no examples."""
        return torch.tensor([model.loss(theta, examples) for theta in thetas], dtype=torch.float64)


@dataclass
class ComputeCost:
    """What a client has computed so far in a round."""

    gradients: int = 0  # examples × passes that were differentiated
    losses: list[float] = field(
        default_factory=list[float]
    )  # of the models that it evaluated, as its evaluator returned them


@dataclass(frozen=True)
class Client:
    """One client during one round."""

    id: ClientId
    data: ClientData
    start: FederationInfo
    model: Model
    trainer: LocalTrainer
    round: int
    seed: int
    evaluator: Evaluator = field(default_factory=ExactEvaluator)
    effort: ComputeCost = field(default_factory=ComputeCost)
    local: LocalState = field(default_factory=LocalState)
    is_final: bool = False  # whether this is the last federated update: nothing is trained after it

    @property
    def keeps_part(self) -> bool:
        """Whether the client keeps a part of the model for itself: every training moves it, and later ones use it."""
        return bool(self.model.kept)

    @property
    def num_trainable(self) -> int:
        """How many leading coordinates of θ are trainable; the rest are buffers."""
        return self.model.layout.num_trainable

    @property
    def learning_rate(self) -> float:
        """The trainer's step size in this round."""
        return self.trainer.learning_rate_in(self.round, self.model)

    def train(
        self,
        start: Tensor,
        *,
        penalty: Penalty | None = None,
        epochs: int | None = None,
        trainable_mask: Tensor | None = None,
        local_only: bool = False,
        examples: Examples | None = None,
        purpose: str = TRAINING,
    ) -> Tensor:
        """Train from `start` on the client's training examples, or on others of its own.

        Two trainings with the same purpose see the same batches; `trainable_mask` is a mask of the coordinates that may
        change; `local_only`: the result is never uploaded, directly or indirectly, so it needs no noise. A part of the
        model that the client keeps for itself belongs to the result, and to the next training (`keeps_part`).
        """
        examples = self.data.train if examples is None else examples
        self.effort.gradients += (self.trainer.epochs if epochs is None else epochs) * len(examples)
        rng, place = self._rng(purpose), self.place(purpose)
        task = TrainingJob(start, examples, self.round, rng, penalty, epochs, trainable_mask, local_only, place)
        return self.trainer.train(self.model, task)

    def descent(self, purpose: str = TRAINING, *, local_only: bool = False) -> GradientSteps:
        """Take local training apart, for a method that has a loop of its own; `local_only` is that of `train`."""
        return GradientSteps(self, self._rng(purpose), purpose, local_only)

    def place(self, purpose: str) -> Place:
        """Say which training of the run the next one of this purpose is."""
        return Place(self.local.name(purpose), self.start.rounds, self.local, self.id, self.seed)

    def validation_losses(self, models: Sequence[Tensor]) -> Tensor:
        """Evaluate models on the client's target; NaN for each if it has no validation data."""
        losses = self.evaluator.losses(self.model, models, self.data.validation)
        self.effort.losses += losses.tolist()
        return losses

    def training_losses(self, models: Sequence[Tensor], examples: Examples | None = None) -> Tensor:
        """Evaluate models on the client's training examples, or on some of them."""
        return self.evaluator.losses(self.model, models, self.data.train if examples is None else examples)

    def random(self, purpose: str) -> torch.Generator:
        """Return a generator for an algorithm's own draws on this client in this round."""
        return stream(self.seed, "algorithm", purpose, self.round, self.id)

    def _rng(self, purpose: str) -> torch.Generator:
        return stream(self.seed, purpose, self.round, self.id)


class GradientSteps:
    """Batches and gradients of the client's own training, as its trainer makes them."""

    def __init__(self, client: Client, rng: torch.Generator, purpose: str, local_only: bool = False) -> None:
        self._client = client
        self._rng = rng
        self._purpose = purpose
        self._local_only = local_only
        self._steppers: dict[str, Stepper] = {}
        # Drawn first, as a plain training does, so that the same purpose shuffles alike here and there.
        self._layers = torch.Generator().manual_seed(layer_seed(rng))

    def batches(self, epochs: int | None = None, examples: Examples | None = None) -> Iterator[Examples]:
        """Cut the training examples, or others of the client's, into the batches of one round."""
        trainer = self._client.trainer
        examples = self._client.data.train if examples is None else examples
        examples = examples.for_local_use() if self._local_only else examples
        return trainer.batches(examples, trainer.epochs if epochs is None else epochs, self._rng)

    def gradient(self, theta: Tensor, batch: Examples, *, local_only: bool = False) -> Tensor:
        """Return a new gradient of the training objective at θ with respect to the trainable coordinates.

        What the client keeps for itself takes its step at once, if this is local training. `local_only`: nothing that
        comes of this one gradient is ever uploaded.
        θ is the caller's working copy: its buffers move as a forward pass in training mode moves them.
        """
        client = self._client
        client.effort.gradients += round(batch.expected)
        client.model.load(theta)
        batch = batch.for_local_use() if local_only else batch
        with layer_rng(self._layers, client.model.device):
            gradient = client.trainer.gradient(client.model, batch).to("cpu", copy=True)
        gradient, of_kept = gradient.tensor_split([client.num_trainable])
        if len(of_kept) and self._purpose == TRAINING:
            self._step_kept(of_kept)
        theta[client.num_trainable :] = client.model.read()[client.num_trainable :]
        return gradient

    def step(
        self, theta: Tensor, gradient: Tensor, weight: float = 1.0, *, follower: Tensor | None = None, of: str = ""
    ) -> None:
        """Take the trainer's step at θ's trainable coordinates, in place, along weight × gradient.

        Each of several models that a method trains side by side has steps of its own, by the name in `of`. What
        follows a model, such as a mixture that it is a share of, moves by `weight` times what the model moves.
        """
        if of not in self._steppers:
            client = self._client
            place = client.place(f"{self._purpose} {of}".strip())
            self._steppers[of] = client.trainer.stepper(
                client.model.layout, client.round, len(client.data.train), place
            )
        num = self._client.num_trainable
        self._steppers[of](theta[:num], gradient, weight, None if follower is None else follower[:num])

    def _step_kept(self, gradient: Tensor) -> None:
        client, of = self._client, "home"  # by which name its optimiser is stored
        if of not in self._steppers:
            place = client.place(f"{self._purpose} {of}")
            layout = client.model.kept_layout
            self._steppers[of] = client.trainer.stepper(layout, client.round, len(client.data.train), place)
        kept = client.model.trainable[client.num_trainable :]
        values = kept.cpu()
        self._steppers[of](values, gradient)
        kept.copy_(values)
