"""FedAvg, tuned by every client on its validation data.

Methods that choose by validation data see the target; FedAvg does not. Here it does, in the plainest way: before a
client uses the global model, it trains a copy on these data, and sends nothing of that. Nothing is left to judge
the result by, so there is no gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Records
from fedfomo.core.client import Client
from fedfomo.core.vectors import finite_or


@register("fedavg-tuned-on-validation")
@dataclass(frozen=True)
class FedAvgTunedOnValidation(FedAvg):
    """Train one global model; every client uses a copy tuned on its validation data."""

    compute: ClassVar[str] = "FedAvg with the validation data on top"

    evaluates_on: ClassVar[Records] = "validation"

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Tune a copy of the global model for as many epochs as a round has; without validation data, use it as is."""
        tuned = client.train(download.model, examples=client.data.validation, purpose="tune on validation")
        return Personalised(finite_or(tuned, otherwise=download.model), None)
