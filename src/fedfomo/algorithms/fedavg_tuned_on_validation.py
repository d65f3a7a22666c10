"""FedAvg, tuned by every client on its validation data.

Methods that choose by validation data see the target; FedAvg does not. Here it does, in the plainest way: before a
client uses the global model, it trains it on these data. Nothing is left to judge the result by, so there is no gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfomo.algorithms.fedavg import AveragingServer, Download, Upload
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.round import Personalised, Trained


@dataclass(frozen=True)
class FedAvgTunedOnValidation(AveragingServer):
    """Train one global model; every client uses a copy tuned on its validation data."""

    sends: ClassVar[str] = "1 model down, 1 up with its number of examples"
    compute: ClassVar[str] = "FedAvg with the validation data on top"

    def start_client(self, start: FederationInfo) -> None:
        """Remember nothing."""

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Tune a copy of the global model for as many epochs as a round has; without validation data, use it as is."""
        tuned = client.train(download.model, examples=client.data.validation, purpose="tune on validation")
        return Personalised(tuned, None)

    def train(self, client: Client, download: Download, memory: None) -> Trained[Upload, None]:
        """Train from the global model, not from the tuned one: nothing learnt from validation data is sent."""
        model = client.train(download.model)
        return Trained(Upload(model, len(client.data.train)), None, model)
