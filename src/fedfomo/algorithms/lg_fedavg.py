"""LG-FedAvg (Liang, Liu, Ziyin, Salakhutdinov, Morency; 2020): some layers are everybody's, the others one's own.

Clients train all layers together; only the global ones are sent and averaged. As in the authors' code, the method
starts from a model trained by FedAvg; here these rounds are counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Coordinates, Ids, Parameters
from fedfomo.core.options import Fraction
from fedfomo.core.parameters import Layout
from fedfomo.errors import InputError


@dataclass(frozen=True)
class State:
    """The global part within the last model of the warm-up."""

    model: Parameters
    is_global: Tensor  # a mask over θ
    warmup_left: int
    settled: Ids  # the clients that have local layers of their own


@dataclass(frozen=True)
class Download:
    """The whole model, or its global part alone for a client that has local layers of its own."""

    coordinates: Coordinates
    is_warmup: bool


@dataclass(frozen=True)
class Upload:
    """The whole model during the warm-up, then its global part."""

    coordinates: Coordinates
    num_examples: int


@dataclass(frozen=True)
class Memory:
    """A client's model, and whether its local layers are the client's own already."""

    model: Parameters
    is_settled: bool


def global_coordinates(layout: Layout, part: str, share: float) -> Tensor:
    """Mark the global layers: the convolutions, or the last ⌈share · layers⌉."""
    layers = layout.layers()
    convolutions = [layer for layer in layers if layer.is_convolution]
    if part == "conv" and not convolutions:
        raise InputError("the network has no convolutions to be global: choose global_part=upper, or auto")
    if part == "conv" or (part == "auto" and convolutions):
        return layout.mask(convolutions)
    return layout.mask(layers[len(layers) - math.ceil(share * len(layers) - 1e-9) :])


def join(is_inside: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    """Return the θ whose coordinates under the mask are `inside`, and `outside` elsewhere."""
    theta = torch.empty(len(is_inside))
    theta[is_inside] = inside
    theta[~is_inside] = outside
    return theta


def validate_part(name: str, part: Tensor, size: int) -> str | None:
    """Say what is wrong with a part of θ that should have so many coordinates, or return None."""
    return None if len(part) == size else f"'{name}' has {len(part)} coordinates where {size} are shared"


@register("lg-fedavg", paper="Liang et al., 2020")
@dataclass(frozen=True)
class LgFedAvg(Algorithm[State, Download, Upload, Memory]):
    """Share some layers with everybody and keep the others, after a warm-up of FedAvg."""

    sends: ClassVar[str] = "1 model each way in the warm-up, then its global layers; up with its number of examples"

    global_part: Literal["auto", "conv", "upper"] = "auto"
    """The global layers: upper ones as in the paper, or convolutions as in the authors' code; auto: these, if any."""
    global_share: Fraction = 0.5
    """Share of the layers, from the last one down, that are global where the upper ones are."""
    warm_up: Fraction = 0.5
    """Share of the rounds in which FedAvg is run first."""

    def start_server(self, start: FederationInfo) -> State:
        """Start from the common initial model."""
        # Departs from the paper: these rounds are part of the run, for the same budget as every other method's.
        rounds = int(self.warm_up * start.rounds + 1e-9)
        return State(start.initial, self._is_global(start), rounds, torch.empty(0, dtype=torch.int64))

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the global part, or the whole model to whoever has not begun to keep layers of its own."""
        is_settled = bool((state.settled == to).any())
        return Download(state.model[state.is_global] if is_settled else state.model, state.warmup_left > 0)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Average whole models by examples in the warm-up, then global parts alike, as the authors' code does."""
        ordered = [uploads[client] for client in sorted(uploads)]
        parts = [upload.coordinates for upload in ordered]
        examples = [float(upload.num_examples) for upload in ordered]
        if state.warmup_left:
            model = weighted_average(parts, examples) if any(examples) else state.model
            return replace(state, model=model, warmup_left=state.warmup_left - 1)
        if not ordered:
            return state
        shared = weighted_average(parts, [1.0] * len(parts))
        settled = torch.tensor(sorted({*state.settled.tolist(), *uploads}), dtype=torch.int64)
        return replace(state, model=join(state.is_global, shared, state.model[~state.is_global]), settled=settled)

    def validate(self, state: State, upload: Upload) -> str | None:
        """Refuse a part of another size than what is shared now."""
        size = len(state.model) if state.warmup_left else int(state.is_global.sum())
        return validate_part("coordinates", upload.coordinates, size)

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model."""
        return Memory(start.initial, is_settled=False)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Take the global part and keep its own layers; without any, take the whole model."""
        is_global, received = self._is_global(client.start), download.coordinates
        is_whole = len(received) == len(memory.model)
        local = received if is_whole and not memory.is_settled else memory.model
        model = join(is_global, received[is_global] if is_whole else received, local[~is_global])
        return Personalised(model, replace(memory, model=model))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train all layers together."""
        model = client.train(memory.model)
        shared = model if download.is_warmup else model[self._is_global(client.start)]
        return Trained(Upload(shared, len(client.data.train)), Memory(model, not download.is_warmup), model)

    def _is_global(self, start: FederationInfo) -> Tensor:
        return global_coordinates(start.layout, self.global_part, self.global_share)
