"""FedAvg with fine-tuning (Jiang et al., 2019; Wang et al., 2019).

Train one global model as FedAvg does; before using it, each client trains it on its own data, and keeps the
result only if its validation data agree that it is better.

Methods that choose by validation data see the target; FedAvg does not. The second method here lets it, in the plainest
way: each client trains its copy on the validation data. Nothing is left to judge the result by, so there is no gate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfomo.algorithms.fedavg import AveragingServer, Download, FedAvg, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Records, Trained
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.messages import Parameters
from fedfomo.core.vectors import finite_or


@dataclass(frozen=True)
class Memory:
    """The global model after fine-tuning on the client's data, used or not."""

    tuned: Parameters


@register("fedavg-finetuned", paper="Jiang et al., 2019; Wang et al., 2019")
@dataclass(frozen=True)
class FedAvgFineTuned(AveragingServer[Memory]):
    """Train one global model; every client uses a copy tuned on its own data, if validation agrees."""

    compute: ClassVar[str] = "as FedAvg, and once more at the end"
    evaluates_on: ClassVar[Records] = "validation"

    gated: bool = True
    """Keep the fine-tuned model only where validation loss falls; otherwise always."""

    def start_client(self, start: FederationInfo) -> Memory:
        """Remember the initial model until there is a tuned one."""
        return Memory(start.initial)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Fine-tune the global model for as long as a round trains, then let validation choose."""
        tuned = client.train(download.model)
        before, after = client.validation_losses((download.model, tuned)).tolist()
        keep = after < before or not self.gated
        model = finite_or(tuned, otherwise=download.model) if keep else download.model
        return Personalised(model, Memory(tuned))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Upload the tuned model: fine-tuning the global model and training it locally are the same steps."""
        return Trained(Upload(memory.tuned, len(client.data.train)), memory, memory.tuned)


@register("fedavg-tuned-on-validation")
@dataclass(frozen=True)
class FedAvgTunedOnValidation(FedAvg):
    """Train one global model; every client uses a copy tuned on its validation data."""

    compute: ClassVar[str] = "FedAvg with the validation data on top"
    evaluates_on: ClassVar[Records] = "validation"

    def personalise(self, client: Client, download: Download, memory: None) -> Personalised[None]:
        """Tune a copy of the global model for as many epochs as a round has; without validation data, use it as is."""
        stays, validation = not client.keeps_part, client.data.validation
        tuned = client.train(download.model, examples=validation, local_only=stays, purpose="tune on validation")
        return Personalised(finite_or(tuned, otherwise=download.model), None)
