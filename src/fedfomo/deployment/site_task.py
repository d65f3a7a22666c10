"""A request of the server, understood: everything that it takes to carry it out."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.client_round import ClientOutcome, run_client_round
from fedfomo.core.data import ClientData
from fedfomo.core.local_training import LocalState, LocalTrainer
from fedfomo.core.model import Model, Score
from fedfomo.deployment.protocol import Header
from fedfomo.privacy.private_data import BudgetTracker, make_private
from fedfomo.simulation.problem import private_part

if TYPE_CHECKING:
    from fedfomo.privacy.engine import PrivacyEngine

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Task:
    """A request, understood."""

    header: Header
    algorithm: AnyAlgorithm
    start: FederationInfo
    model: Model
    data: ClientData
    download: Any
    memory: Any
    trainer: LocalTrainer  # that of the site's model.py, or as the server wants sites to train
    local: Mapping[str, Tensor]  # what it keeps from round to round

    @property
    def trains(self) -> bool:
        """Whether the site is to train, and not only to make the last federated update."""
        return bool(self.header["kind"] != "finish")

    def client(self) -> Client:
        """Return the client that the method meets."""
        header, local = self.header, LocalState(self.local)
        place = header["slot"], self.data, self.start, self.model, self.trainer, header["round"], header["seed"]
        return Client(*place, local=local, is_final=not self.trains)

    def private_client(self, engine: PrivacyEngine, tracker: BudgetTracker) -> Client:
        """Return the same client, whose records can only be read by noisy queries that the tracker counts."""
        seed = engine.seed(self.header["seed"])
        data, trainer = make_private(self.data, tracker), engine.trainer(private_part(self.trainer))
        return replace(self.client(), data=data, trainer=trainer, seed=seed, evaluator=engine.evaluator())

    def run(self, client: Client) -> ClientOutcome:
        """Run the client's round."""
        outcome = run_client_round(self.algorithm, client, self.download, self.memory, self.trains, self.score)
        if outcome.is_rolled_back:
            log.warning("training diverged in round %d: what came of it is forgotten", self.header["round"])
        return outcome

    def score(self, theta: Tensor) -> Score:
        """Score a model on the site's test examples."""
        return self.model.score(theta, self.data.test)
