"""What is given before a method is chosen: network, clients' data, local training, privacy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.augmentation import require_images
from fedfomo.core.client import FederationInfo
from fedfomo.core.data import ClientData
from fedfomo.core.local_training import LocalTrainer, Sgd
from fedfomo.core.model import Model
from fedfomo.core.vectorised import Stack
from fedfomo.errors import InputError
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

    def __post_init__(self) -> None:
        if isinstance(self.trainer, Sgd) and self.trainer.augment:
            for data in self.clients:
                require_images(data.train.inputs)

    def privacy_engine(self, rounds: int) -> PrivacyEngine | None:
        """Return what protects the clients' records in a run of so many rounds; None if privacy is off."""
        if not self.privacy.is_on:
            return None
        from fedfomo.privacy.engine import PrivacyEngine  # takes as long to import as torch, which few runs need

        if not isinstance(self.trainer, Sgd):
            raise InputError("privacy adds noise to Sgd; this trainer would have to add its own")
        return PrivacyEngine.of(self.privacy, self.trainer, [len(data.train) for data in self.clients], rounds)

    def start(self, rounds: int) -> FederationInfo:
        """Return what server and clients know before the first of so many rounds."""
        return FederationInfo(self.initial, self.model.layout, len(self.clients), rounds, self.groups, self.targets)

    def model_of(self, algorithm: AnyAlgorithm) -> Model:
        """Return the model of an algorithm's clients: this one, or one that is built around it."""
        self.model.load(self.initial)  # it may hold what another run computed last
        return self.model.rebuilt(algorithm.network) if algorithm.wraps_network else self.model

    def stack_of(self, model: Model) -> Stack | None:
        """Return a stack of the clients' models, if that is exact to rounding and faster."""
        if type(self.trainer) is not Sgd or self.trainer.augment or self.privacy.is_on:
            return None
        return Stack.of(model, max((data.train for data in self.clients), key=len))
