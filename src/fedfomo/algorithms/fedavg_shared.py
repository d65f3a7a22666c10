"""FedAvg with shared data (Zhao et al., 2018), as FedFomo's authors compare with: clients give the data themselves.

Every client gives a small share of its training examples to a pool on which everybody trains. A client uploads its
share once; the server keeps the pool and sends each client what that client lacks.

Departs from the paper: Zhao et al. give the server data of its own, on which it also trains the first model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedfomo.algorithms import fedavg
from fedfomo.algorithms.fedavg import average_uploads
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Algorithm, Personalised, Trained
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.data import Examples
from fedfomo.core.messages import Ids, Parameters
from fedfomo.core.options import Fraction


@dataclass(frozen=True)
class Share:
    """What one client gives."""

    inputs: Tensor
    labels: Tensor


@dataclass(frozen=True)
class State:
    """The global model, the pool, and how much of it each client has got."""

    model: Parameters
    pool: Mapping[int, Share]
    arrivals: Ids  # whose shares the pool holds, in the order in which they came
    received: Mapping[int, int]  # how many of these have reached a client


@dataclass(frozen=True)
class Download:
    """The global model and the shares that the client lacks."""

    model: Parameters
    shares: Mapping[int, Share]
    num_shares: int  # in the whole pool
    wants_share: bool  # the pool has none of this client's yet


@dataclass(frozen=True)
class Upload:
    """A locally trained model, the number of examples behind it, and the client's share if it was asked for."""

    model: Parameters
    num_examples: int
    share: Share | None
    num_received: int  # of the pool's shares


@dataclass(frozen=True)
class Memory:
    """The shares of others, and how many the pool had when the last of them came."""

    pool: Mapping[int, Share]
    num_received: int


def draw_share(examples: Examples, fraction: float, rng: torch.Generator) -> Share:
    """Draw a fraction of the examples, rounded, at random."""
    order = torch.randperm(len(examples), generator=rng)
    drawn = examples.take(order[: round(fraction * len(examples))])
    return Share(drawn.inputs, drawn.labels)


def own_and_pool(own: Examples, pool: Mapping[int, Share], num_outputs: int) -> Examples:
    """Return a client's own examples and those shares, in the order of ids, that look like them."""
    kind = _kind(own.inputs), _kind(own.labels)
    alike = [share for _, share in sorted(pool.items()) if (_kind(share.inputs), _kind(share.labels)) == kind]
    return own.joined(*(Examples(s.inputs, s.labels) for s in alike if _is_within(s.labels, num_outputs)))


@register("fedavg-shared", paper="Zhao et al., 2018")
@dataclass(frozen=True)
class FedAvgShared(Algorithm[State, Download, Upload, Memory]):
    """Train one global model on own data and a pool to which everybody gives a share; every client uses it."""

    sends: ClassVar[str] = (
        "1 model down, 1 up with its number of examples and of shares received;"
        " once, a share of every client's training data to everybody"
    )
    compute: ClassVar[str] = "FedAvg with the pool on top"
    uploads_examples: ClassVar[bool] = True
    reads_records: ClassVar[bool] = True

    fraction: Fraction = 0.05
    """Share of its training examples that every client gives away."""

    def start_server(self, start: FederationInfo) -> State:
        """Start from the common initial model and an empty pool."""
        return State(start.initial, {}, torch.empty(0, dtype=torch.int64), {})

    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Send the global model and what the client lacks of the pool."""
        lacking = state.arrivals[state.received.get(to, 0) :].tolist()
        shares = {client: state.pool[client] for client in lacking if client != to}
        return Download(state.model, shares, len(state.pool), to not in state.pool)

    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Average the models, put new shares into the pool, and note who has got how much of it."""
        trained = {client: fedavg.Upload(u.model, u.num_examples) for client, u in uploads.items()}
        model = average_uploads(trained, otherwise=state.model)
        given = {client: u.share for client, u in sorted(uploads.items()) if u.share and client not in state.pool}
        arrivals = torch.cat((state.arrivals, torch.tensor([*given], dtype=torch.int64)))
        received = {client: u.num_received for client, u in uploads.items()}
        return State(model, {**state.pool, **given}, arrivals, {**state.received, **received})

    def validate(self, state: State, upload: Upload) -> str | None:
        """Refuse a share whose inputs and labels do not belong together, or that is larger than anybody asked for."""
        share = upload.share
        if share is None:
            return None
        if share.inputs.dim() == 0 or share.inputs.shape[:1] != share.labels.shape[:1]:
            return "'share' does not have one label for each input"
        most = self.fraction * upload.num_examples + 1
        return None if len(share.labels) <= most else f"'share' has {len(share.labels)} examples, more than {most:.0f}"

    def start_client(self, start: FederationInfo) -> Memory:
        """Hold nothing of others."""
        return Memory({}, 0)

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Use the global model as it is, and put by what arrived of the pool."""
        return Personalised(download.model, Memory({**memory.pool, **download.shares}, download.num_shares))

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train from the global model on own data and the pool."""
        own = client.data.train
        num_outputs = client.model.outputs(download.model, next(own.batches(1))).shape[-1]
        examples = own_and_pool(own, memory.pool, num_outputs)
        model = client.train(download.model, examples=examples)
        share = draw_share(own, self.fraction, client.random("share")) if download.wants_share else None
        return Trained(Upload(model, len(examples), share, memory.num_received), memory, model)


def _is_within(labels: Tensor, num_outputs: int) -> bool:
    """Tell whether labels that count classes name outputs of the network: others would end the training."""
    return labels.is_floating_point() or bool(((labels >= 0) & (labels < num_outputs)).all())


def _kind(tensor: Tensor) -> tuple[torch.dtype, torch.Size]:
    return tensor.dtype, tensor.shape[1:]
