"""Local training: every client on its own, the bar that a federation has to clear."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from fedfomo.client import Client, ClientId, Start
from fedfomo.federation import Personalised, Trained
from fedfomo.wire import Parameters


@dataclass(frozen=True)
class Memory:
    """A client's own model."""

    own: Parameters


@dataclass(frozen=True)
class Local:
    """Train alone; nothing is sent either way."""

    sends: ClassVar[str] = "nothing"
    compute: ClassVar[str] = "as FedAvg"

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
        """Go on training the own model."""
        own = client.train(memory.own)
        return Trained(None, Memory(own), own)
