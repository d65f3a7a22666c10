"""Local training on everything a client has: its training and its validation data.

The other methods judge by validation data and do not train on them. This is what these data are worth as training
data, to a client on its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedfomo.algorithms.local import Memory
from fedfomo.client import Client, ClientId, Start
from fedfomo.federation import Personalised, Trained


@dataclass(frozen=True)
class LocalAll:
    """Train alone on training and validation data together; nothing is sent either way."""

    sends: ClassVar[str] = "nothing"
    compute: ClassVar[str] = "FedAvg with the validation data on top"

    def start_server(self, start: Start) -> None:
        """Keep nothing."""

    def dispatch(self, state: None, to: ClientId, rng: torch.Generator) -> None:
        """Send nothing."""

    def collect(self, state: None, uploads: Mapping[ClientId, None]) -> None:
        """Receive nothing."""

    def start_client(self, start: Start) -> Memory:
        """Start from the common initial model."""
        return Memory(start.initial)

    def personalise(self, client: Client, download: None, memory: Memory) -> Personalised[Memory]:
        """Use the own model as it is."""
        return Personalised(memory.own, memory)

    def train(self, client: Client, download: None, memory: Memory) -> Trained[None, Memory]:
        """Go on training the own model on both sets."""
        both = client.data.train.joined(client.data.validation)
        own = client.train(memory.own, examples=both, stays=True)
        return Trained(None, Memory(own), own)
