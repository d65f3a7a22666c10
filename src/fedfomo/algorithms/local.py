"""Local training: every client trains alone. It is the baseline of every federation.

Two controls go with it. FedFomo rejects a model that raises the validation loss, so it also stops before a client
overfits: `keep_best` does that without other clients' models. And `local-all` trains on the validation data too, which
other methods only evaluate on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Records, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Parameters


@dataclass(frozen=True)
class Memory:
    """A client's own model, as last trained, and the best so far if it is asked for."""

    own: Parameters
    best: Parameters | None = None


class NoServer(Algorithm[None, None, None, Memory]):
    """Clients that start alike, and a server that does nothing."""

    sends: ClassVar[str] = "nothing"

    def start_server(self, start: FederationInfo) -> None:
        """Keep nothing."""

    def configure_client(self, state: None, to: ClientId, rng: torch.Generator) -> None:
        """Send nothing."""

    def aggregate(self, state: None, uploads: Mapping[ClientId, None]) -> None:
        """Receive nothing."""

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model."""
        return Memory(start.initial)


@register("local")
@dataclass(frozen=True)
class Local(NoServer):
    """Train alone; nothing is sent either way."""

    evaluates_on: ClassVar[Records] = "validation"  # with keep_best

    keep_best: bool = False
    """Use the model of the round with the lowest validation loss so far, and continue training from it."""

    def personalise(self, client: Client, download: None, memory: Memory) -> Personalised[Memory]:
        """Use its own model as it is, or the best so far."""
        if not self.keep_best:
            return Personalised(memory.own, memory)
        best = memory.own if memory.best is None else better_of(client, memory.best, memory.own)
        return Personalised(best, Memory(memory.own, best))

    def train(self, client: Client, download: None, memory: Memory) -> Trained[None, Memory]:
        """Go on training its own model, or the best."""
        own = client.train(memory.own if memory.best is None else memory.best, local_only=True)
        return Trained(None, replace(memory, own=own), own)


@register("local-all")
@dataclass(frozen=True)
class LocalAll(NoServer):
    """Train alone on training and validation data together; nothing is sent either way."""

    compute: ClassVar[str] = "FedAvg with the validation data on top"

    def personalise(self, client: Client, download: None, memory: Memory) -> Personalised[Memory]:
        """Use its own model as it is."""
        return Personalised(memory.own, memory)

    def train(self, client: Client, download: None, memory: Memory) -> Trained[None, Memory]:
        """Go on training its own model on both sets."""
        both = client.data.train.joined(client.data.validation)
        own = client.train(memory.own, examples=both, local_only=True)
        return Trained(None, Memory(own), own)


def better_of(client: Client, old: Tensor, new: Tensor) -> Tensor:
    """Return the model of lower validation loss; without validation data, the new one."""
    before, after = client.validation_losses((old, new)).tolist()
    keeps_old = before <= after or (math.isnan(after) and not math.isnan(before))
    return old if keeps_old else new
