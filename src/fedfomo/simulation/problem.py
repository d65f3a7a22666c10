"""What is given before a method is chosen: network, clients' data, local training, privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch import Tensor

from fedfomo.algorithms import ALGORITHMS
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.augmentation import require_images
from fedfomo.core.client import FederationInfo
from fedfomo.core.data import ClientData
from fedfomo.core.local_training import GradientTrainer, LocalTrainer, Sgd
from fedfomo.core.model import Model
from fedfomo.core.own_loop import OwnLoop
from fedfomo.core.parts import kept_names, split_model
from fedfomo.core.trainer import Trainer
from fedfomo.core.vectorised import Stack
from fedfomo.errors import InputError, require
from fedfomo.privacy.accountant import Query
from fedfomo.privacy.config import Privacy

if TYPE_CHECKING:
    from fedfomo.privacy.engine import PrivacyEngine


@dataclass(frozen=True)
class FederatedProblem:
    """Everything that is given before a method is chosen."""

    model: Model
    initial: Tensor
    clients: Sequence[ClientData]
    trainer: LocalTrainer
    seed: int
    groups: tuple[int, ...] | None = None  # each client's true distribution, where a scenario knows it
    targets: tuple[int, ...] | None = None  # likewise, of its validation and test data
    privacy: Privacy = field(default_factory=Privacy)
    share: tuple[str, ...] = ()  # patterns of what travels; none: everything that is not kept
    keep: tuple[str, ...] = ()  # patterns of what every client keeps for itself
    statistics_noise: float = 0.0  # of a query on every client's training records before the run; 0: there was none

    def __post_init__(self) -> None:
        if isinstance(self.trainer, Sgd) and self.trainer.augment:
            for data in self.clients:
                require_images(data.train.probe().inputs)

    def privacy_engine(self, rounds: int) -> PrivacyEngine | None:
        """Return what protects the clients' records in a run of so many rounds; None if privacy is off."""
        if not self.privacy.is_on:
            return None
        from fedfomo.privacy.engine import PrivacyEngine  # takes as long to import as torch, which few runs need

        trainer = private_part(self.trainer)
        before = {Query("training", self.statistics_noise, 1.0): 1} if self.statistics_noise else {}
        return PrivacyEngine.of(self.privacy, trainer, [len(data.train) for data in self.clients], rounds, before)

    def split(self, algorithm: AnyAlgorithm) -> FederatedProblem:
        """Return the problem in which θ is what travels: all but what the method or the user lets clients keep."""
        kept = self.model.kept or kept_names(self.model.architecture, algorithm, self.share, self.keep)
        model, initial = split_model(self.model, self.initial, kept)
        return self if model is self.model else replace(self, model=model, initial=initial)

    def check(self, algorithm: AnyAlgorithm) -> None:
        """Refuse, before anything is computed, a trainer that does not go with a method, the model or privacy."""
        check_trainer(self.trainer, algorithm, self.split(algorithm).model_of(algorithm))
        if self.privacy.is_on:
            private_part(self.trainer)
            require(self.model.precision == "float32", "privacy clips gradients in float32: leave out precision")

    def start(self, rounds: int) -> FederationInfo:
        """Return what server and clients know before the first of so many rounds."""
        return FederationInfo(self.initial, self.model.layout, len(self.clients), rounds, self.groups, self.targets)

    def model_of(self, algorithm: AnyAlgorithm) -> Model:
        """Return the model of an algorithm's clients: this one, or one that is built around it."""
        self.model.load(self.initial)  # it may hold what another run computed last
        return self.model.rebuilt(algorithm.network) if algorithm.wraps_network else self.model

    def stack_of(self, model: Model) -> Stack | None:
        """Return a stack of the clients' models, if that is exact to rounding and faster."""
        sets = [part for own in self.clients for part in (own.train, own.validation, own.test)]
        is_lazy = any(part.is_lazy for part in sets)
        if type(self.trainer) is not Sgd or self.trainer.augment or self.privacy.is_on or is_lazy:
            return None
        return Stack.of(model, max((data.train for data in self.clients), key=len), sets)


def takes_trainer(method: AnyAlgorithm, trainer: LocalTrainer) -> bool:
    """Return whether a trainer gives what a method with its options asks of it."""
    if method.steps_needed == "plain":
        return isinstance(trainer, Sgd)
    return method.steps_needed == "trainings" or isinstance(trainer, Sgd | Trainer)


def check_trainer(trainer: LocalTrainer, algorithm: AnyAlgorithm, model: Model) -> None:
    """Refuse a trainer that cannot do what a method asks of it, or that does not work with the model."""
    name = algorithm.name or type(algorithm).__name__
    able = ", ".join(sorted(known for known, method in ALGORITHMS.items() if method.steps == "trainings"))
    if not takes_trainer(algorithm, trainer) and algorithm.steps_needed == "plain":
        raise InputError(
            f"{name} takes plain steps of its own, not those of a {kind_of(trainer)}: leave trainer out, or give"
            f" fedfomo.Sgd; or choose a method whose trainings are its trainer's: {able}"
        )
    if not takes_trainer(algorithm, trainer):
        raise InputError(
            f"{name} takes single gradient steps, which a {kind_of(trainer)} does not give: give a fedfomo.Trainer"
            f" with your optimiser, or choose a method that asks for whole trainings: {able}"
        )
    if isinstance(trainer, Trainer):
        trainer.check(model)


def private_part(trainer: LocalTrainer) -> GradientTrainer:
    """Return a trainer whose gradients can be clipped for each record; refuse others."""
    if not isinstance(trainer, Sgd | Trainer):
        raise InputError(
            f"privacy clips and noises the gradient of every record, which it cannot reach in a {kind_of(trainer)}:"
            " give fedfomo.Trainer with your optimiser, or leave out privacy"
        )
    is_exact = not (isinstance(trainer, Trainer) and trainer.autocasts)
    require(is_exact, "privacy clips gradients in float32: leave out amp and precision")
    return trainer


def kind_of(trainer: LocalTrainer) -> str:
    """Name the kind of a trainer in a sentence."""
    return "training loop of your own" if isinstance(trainer, OwnLoop) else type(trainer).__name__
