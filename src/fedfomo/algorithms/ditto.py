"""Ditto (Li, Hu, Beirami, Smith; ICML 2021): FedAvg, and beside it a model of one's own that stays near.

Every client trains two models on the same batches: the global one, as FedAvg does, and its own, which minimises the
client's loss + λ/2 ‖v − w‖², where w is the global model of the round. The personal model v is the one it uses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfomo.algorithms.fedavg import AveragingServer, Download, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Trained
from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.local_training import ProximalTerm
from fedfomo.core.messages import Parameters
from fedfomo.core.options import NonNegative


@dataclass(frozen=True)
class Memory:
    """A client's own model, once it has trained one."""

    own: Parameters | None  # v_i


@register("ditto", paper="Li et al., 2021")
@dataclass(frozen=True)
class Ditto(AveragingServer[Memory]):
    """Train a model of one's own near the global one, which is trained as by FedAvg."""

    compute: ClassVar[str] = "2 × FedAvg"

    lambda_: NonNegative = 1.0
    """Weight λ of the proximal term that holds the personal model near the global one."""

    def start_client(self, start: FederationInfo) -> Memory:
        """Have no model yet."""
        return Memory(None)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Use the personal model; without one, the global model."""
        # Departs from the paper: who joins late starts its own model from the global one, not from the initial one.
        return Personalised(download.model if memory.own is None else memory.own, memory)

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train the global model, and on the same batches the personal one, of which nothing leaves."""
        model = client.train(download.model)
        start = download.model if memory.own is None else memory.own
        pull = ProximalTerm(download.model, self.lambda_)
        own = client.train(start, penalty=pull, local_only=not client.keeps_part)
        return Trained(Upload(model, len(client.data.train)), Memory(own), own)
