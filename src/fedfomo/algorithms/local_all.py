"""Local training on everything a client has: its training and its validation data.

The other methods judge by validation data and do not train on them. This is what these data are worth as training
data, to a client on its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedfomo.algorithms.local import Memory, NoServer
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised, Trained
from fedfomo.core.client import Client


@register("local-all")
@dataclass(frozen=True)
class LocalAll(NoServer):
    """Train alone on training and validation data together; nothing is sent either way."""

    compute: ClassVar[str] = "FedAvg with the validation data on top"

    def personalise(self, client: Client, download: None, memory: Memory) -> Personalised[Memory]:
        """Use the own model as it is."""
        return Personalised(memory.own, memory)

    def train(self, client: Client, download: None, memory: Memory) -> Trained[None, Memory]:
        """Go on training the own model on both sets."""
        both = client.data.train.joined(client.data.validation)
        own = client.train(memory.own, examples=both, local_only=True)
        return Trained(None, Memory(own), own)
