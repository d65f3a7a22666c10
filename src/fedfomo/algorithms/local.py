"""Local training: every client on its own, the bar that a federation has to clear.

FedFomo never moves to what its validation data speak against, so that it also stops before a client overfits. What
that alone is worth, without anybody else's model, is local training that keeps its best. And the other methods do not
train on validation data: local training on these too shows what they are worth so, to a client on its own.
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
    """Judge every round's model by validation data; use the best so far, and train on from that."""

    def personalise(self, client: Client, download: None, memory: Memory) -> Personalised[Memory]:
        """Use the own model as it is, or the best so far."""
        if not self.keep_best:
            return Personalised(memory.own, memory)
        best = memory.own if memory.best is None else better_of(client, memory.best, memory.own)
        return Personalised(best, Memory(memory.own, best))

    def train(self, client: Client, download: None, memory: Memory) -> Trained[None, Memory]:
        """Go on training the own model, or the best."""
        own = client.train(memory.own if memory.best is None else memory.best, local_only=True)
        return Trained(None, replace(memory, own=own), own)


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


def better_of(client: Client, old: Tensor, new: Tensor) -> Tensor:
    """Return the new model unless validation data speak for the old one; without any, nothing does."""
    before, after = client.validation_losses((old, new)).tolist()
    keeps_old = before <= after or (math.isnan(after) and not math.isnan(before))
    return old if keeps_old else new
