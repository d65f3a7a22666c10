"""FedRep (Collins, Hassani, Mokhtari, Shakkottai; ICML 2021): one representation for all, a head for each.

In every round a client fits its head to the representation that it has received, then trains the representation
under that head. The representations are averaged; heads never leave the clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import weighted_average
from fedfomo.algorithms.lg_fedavg import join, validate_part
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Coordinates, Parameters
from fedfomo.core.options import Count
from fedfomo.core.vectors import finite_or


@dataclass(frozen=True)
class Representation:
    """All layers but the head: what the server keeps and sends."""

    body: Coordinates  # φ


@dataclass(frozen=True)
class Upload:
    """A locally trained representation and the number of examples behind it."""

    body: Coordinates
    num_examples: int


@dataclass(frozen=True)
class Memory:
    """The representation last received or trained, and the client's own head."""

    model: Parameters  # (φ, h_i)


@register("fedrep", paper="Collins et al., 2021")
@dataclass(frozen=True)
class FedRep(Algorithm[Representation, Representation, Upload, Memory]):
    """Share all layers but the last, which every client fits for itself."""

    sends: ClassVar[str] = "1 model without its head each way; up with its number of examples"
    compute: ClassVar[str] = "as FedAvg, and the head once more at the end"

    body_epochs: Count = 2
    """Epochs that train the representation; the rest of the round's epochs, at least one, fit the head before."""
    head_layers: Count = 1
    """How many of the last layers are the head."""

    def start_server(self, start: FederationInfo) -> Representation:
        """Start from the common initial model's representation."""
        return Representation(start.initial[~self._is_head(start)])

    def configure_client(self, state: Representation, to: ClientId, rng: torch.Generator) -> Representation:
        """Send the representation."""
        return state

    def aggregate(self, state: Representation, uploads: Mapping[ClientId, Upload]) -> Representation:
        """Average the representations by numbers of examples; if none arrived, stay."""
        ordered = [uploads[client] for client in sorted(uploads) if uploads[client].num_examples > 0]
        if not ordered:
            return state
        return Representation(weighted_average([u.body for u in ordered], [u.num_examples for u in ordered]))

    def validate(self, state: Representation, upload: Upload) -> str | None:
        """Refuse a representation of another size."""
        return validate_part("body", upload.body, len(state.body))

    def start_client(self, start: FederationInfo) -> Memory:
        """Start from the common initial model."""
        return Memory(start.initial)

    def personalise(self, client: Client, download: Representation, memory: Memory) -> Personalised[Memory]:
        """Fit its own head to the representation that arrived."""
        is_head = self._is_head(client.start)
        received = join(is_head, memory.model[is_head], download.body)
        # Departs from the paper: head and body share one round's epochs, where it gives the head 10 of its own.
        epochs = max(1, client.trainer.epochs - self._body_epochs(client))
        model = client.train(received, trainable_mask=is_head[: client.num_trainable], epochs=epochs, purpose="head")
        model = finite_or(model, otherwise=received)
        return Personalised(model, Memory(model))

    def train(self, client: Client, download: Representation, memory: Memory) -> Trained[Upload, Memory]:
        """Train the representation under the head."""
        is_head = self._is_head(client.start)
        model = client.train(
            memory.model, trainable_mask=~is_head[: client.num_trainable], epochs=self._body_epochs(client)
        )
        return Trained(Upload(model[~is_head], len(client.data.train)), Memory(model), model)

    def _body_epochs(self, client: Client) -> int:
        """Leave the head one epoch at least, if there are two."""
        return max(1, min(self.body_epochs, client.trainer.epochs - 1))

    def _is_head(self, start: FederationInfo) -> Tensor:
        return start.layout.mask(start.layout.layers()[-self.head_layers :])
