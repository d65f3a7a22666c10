"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith; MLSys 2020): FedAvg whose clients stay near the global model.

A client minimises its loss + μ/2 ‖θ − θ^G‖², where θ^G is the model that it has just received. Clients that are too
slow for all epochs return what they have, and it counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedfomo.algorithms.fedavg import AveragingServer, Download, Upload
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.local_training import ProximalTerm
from fedfomo.core.round import Personalised, Trained
from fedfomo.errors import require


def draw_epochs(epochs: int, share_of_stragglers: float, rng: torch.Generator) -> int:
    """Return E; for a straggler, a whole number drawn evenly from [1, E)."""
    is_straggler = float(torch.rand((), generator=rng, dtype=torch.float64)) < share_of_stragglers
    return int(torch.randint(1, epochs, (), generator=rng)) if is_straggler and epochs > 1 else epochs


@dataclass(frozen=True)
class FedProx(AveragingServer):
    """Train one global model near which clients stay while they train; every client uses it."""

    sends: ClassVar[str] = "1 model down, 1 up with its number of examples"
    compute: ClassVar[str] = "as FedAvg, less for stragglers"

    pull: float = 0.1  # μ
    """Strength of the pull back to the global model."""
    stragglers: float = 0.0
    """Share of clients that manage only some of a round's epochs; what they return is kept."""

    def __post_init__(self) -> None:
        require(math.isfinite(self.pull) and self.pull >= 0, f"pull must be a number of at least 0, not {self.pull}")
        require(0 <= self.stragglers <= 1, f"stragglers must be between 0 and 1, not {self.stragglers}")

    def start_client(self, start: FederationInfo) -> None:
        """Remember nothing."""

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Use the global model as it is."""
        return Personalised(download.model, None)

    def train(self, client: Client, download: Download, memory: None) -> Trained[Upload, None]:
        """Train from the global model and near it."""
        # Departs from the paper: each client is slow with this chance, in place of an exact share of the cohort.
        epochs = draw_epochs(client.trainer.epochs, self.stragglers, client.random("straggler"))
        model = client.train(download.model, penalty=ProximalTerm(download.model, self.pull), epochs=epochs)
        return Trained(Upload(model, len(client.data.train)), None, model)
