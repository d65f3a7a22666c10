"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith; MLSys 2020): FedAvg whose clients stay near the global model.

A client minimises its loss + μ/2 ‖θ − θ^G‖², where θ^G is the model that it has just received. Clients that are too
slow for all epochs return what they have, and it counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.algorithms.registry import register
from fedfomo.core.client import Client
from fedfomo.core.local_training import ProximalTerm
from fedfomo.core.options import Fraction, NonNegative


def draw_epochs(epochs: int, share_of_stragglers: float, rng: torch.Generator) -> int:
    """Return E; for a straggler, a whole number drawn evenly from [1, E)."""
    is_straggler = float(torch.rand((), generator=rng, dtype=torch.float64)) < share_of_stragglers
    return int(torch.randint(1, epochs, (), generator=rng)) if is_straggler and epochs > 1 else epochs


@register("fedprox", paper="Li et al., 2020")
@dataclass(frozen=True)
class FedProx(FedAvg):
    """Train one global model near which clients stay while they train; every client uses it."""

    compute: ClassVar[str] = "as FedAvg, less for stragglers"

    mu: NonNegative = 0.1
    """Weight μ of the proximal term that holds clients near the global model."""
    stragglers: Fraction = 0.0
    """Share of clients that manage only some of a round's epochs; what they return is kept."""

    def penalty(self, download: Download) -> ProximalTerm:
        """Return μ/2 ‖θ − θ^G‖²."""
        return ProximalTerm(download.model, self.mu)

    def epochs(self, client: Client) -> int:
        """Return E, or fewer for a straggler."""
        # Departs from the paper: each client is slow with this chance, in place of an exact share of the cohort.
        return draw_epochs(client.trainer.epochs, self.stragglers, client.random("straggler"))
