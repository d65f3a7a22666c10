"""FedFomo against malicious clients: five defences, each an option, all beyond the paper.

A mixture is evaluated before it is used, its last layer is trained anew, copies of one model share a slot, uploaded
weights are clipped, and clients that upload nothing new are named. Models are compared by short sketches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from fedfomo.algorithms.fedfomo import state as paper
from fedfomo.algorithms.fedfomo.core import FedFomo, mix
from fedfomo.algorithms.fedfomo.state import Download, Memory, Upload
from fedfomo.algorithms.registry import register
from fedfomo.core.algorithm import Personalised
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.messages import Offsets
from fedfomo.core.options import CountOrZero, NonNegative
from fedfomo.core.rng import stream

SKETCHED = 256  # numbers that stand for a model: distances between sketches are true to about 5 %
# Measured, as docs/algorithms/fedfomo.md tells: copies lie within this part of their usual distance from others, and
COPY = 0.01
# free riders leave less than this part of the way to what they were sent.
LEFT = 0.1
ROWS_AT_ONCE = 1024


def reject_worse_mixture(mixing: Tensor, mixture_loss: float, reference_loss: float, own_loss: float) -> Tensor:
    """Return the mixing weights if the mixture is no worse than what the client had; else those of the better model.

    Its own model is the first candidate; weights of 0 mean the reference. Losses that are not numbers decide nothing.
    """
    if not mixture_loss > min(reference_loss, own_loss):
        return mixing
    kept = torch.zeros_like(mixing)
    kept[0] = float(own_loss < reference_loss)
    return kept


def retrain_head(client: Client, model: Tensor, epochs: int) -> Tensor:
    """In the last update, put the initial model's last layer in place of the model's, and train it on own data."""
    if epochs == 0 or not client.is_final or len(client.data.train) == 0:
        return model
    layout = client.start.layout
    is_head = layout.mask(layout.layers()[-1:])
    fresh = torch.where(is_head, client.start.initial, model)
    return client.train(
        fresh, trainable_mask=is_head[: client.num_trainable], epochs=epochs, local_only=True, purpose="new head"
    )


def clipped(reports: Mapping[int, Tensor], limit: float) -> dict[int, Tensor]:
    """Clip weights at `limit` times what is usual: the median, over clients, of the median |w| > 0 of each."""
    sizes = [weights[weights != 0].abs() for weights in reports.values()]
    if not sizes:
        return {}
    # Who reports nothing counts as well: in the first round, a liar would otherwise say what is usual.
    bound = limit * float(torch.stack([size.median() if size.numel() else torch.zeros(()) for size in sizes]).median())
    return {client: weights.clamp(-bound, bound) for client, weights in reports.items()}


def sketch(models: Sequence[Tensor]) -> Tensor:
    """Add every coordinate, with a random sign, to one of a few sums: squared distances stay as they are on average."""
    size = models[0].numel()
    if size <= SKETCHED:
        return torch.stack([model.double() for model in models])
    rng = stream(0, "sketch", size)
    places = torch.randint(SKETCHED, (size,), generator=rng)
    signs = torch.randint(2, (size,), generator=rng).double().mul_(2).sub_(1)
    sketches = torch.zeros(len(models), SKETCHED, dtype=torch.float64)
    for row, model in zip(sketches, models, strict=True):
        row.index_add_(0, places, signs * model)
    return sketches


def near_copies(sketches: Tensor) -> Tensor:
    """Return, for each model, the first of the set of near copies that it is in: itself, if it is like no other.

    Near is what lies within a small part of either model's median distance from all: as long as half of the clients
    are honest, no others can change what is near to these.
    """
    labels = torch.arange(len(sketches))
    usual = torch.cat([distances.median(dim=1).values for _, distances in _distances(sketches)])
    pairs: list[Tensor] = []
    for begin, distances in _distances(sketches):
        limits = COPY * torch.minimum(usual[begin : begin + len(distances), None], usual)
        pairs.append(torch.nonzero(distances <= limits) + torch.tensor([begin, 0]))
    one, other = torch.cat(pairs).T
    while True:  # a copy of a copy is a copy
        merged = labels.scatter_reduce(0, one, labels[other], "amin")
        if torch.equal(merged, labels):
            return labels
        labels = merged


def near_duplicates(ids: Tensor, models: Mapping[int, Tensor], num_clients: int) -> Tensor:
    """Return, for each client, the first of the set of near copies that its model is in; itself if it has none."""
    copies = torch.arange(num_clients)
    if ids.numel():
        copies[ids] = ids[near_copies(sketch([models[n] for n in ids.tolist()]))]
    return copies


def _distances(sketches: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the distances of some models at a time from all, and the place of the first of them."""
    for begin in range(0, len(sketches), ROWS_AT_ONCE):
        yield begin, torch.cdist(sketches[begin : begin + ROWS_AT_ONCE], sketches)


def deduplicate(copies: Tensor, affinity: tuple[Tensor, Tensor], available: Tensor, rng: torch.Generator) -> Tensor:
    """Keep, of every set of near copies among the available, the one of highest p; ties at random.

    `copies` holds for each client the first of its set; `affinity` the ids and values of a row's entries.
    """
    sets = copies[available]
    has_copies = torch.bincount(sets, minlength=len(copies))[sets] > 1
    if not bool(has_copies.any()):
        return available
    known: dict[int, float] = dict(zip(*(part.tolist() for part in affinity), strict=True))
    members: list[int] = available[has_copies].tolist()
    order: list[int] = torch.randperm(len(members), generator=rng).tolist()
    shuffled = [members[place] for place in order]
    best: dict[int, int] = {}
    for member in sorted(shuffled, key=lambda n: -known.get(n, 0.0)):
        best.setdefault(int(copies[member]), member)
    return torch.cat((available[~has_copies], torch.tensor(list(best.values())))).sort().values


def find_free_riders(
    uploads: Mapping[int, Tensor], known: Mapping[int, Tensor], sent: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """Return who uploads its last model again, or has come from there nearly all the way to one that it was sent.

    Beside each stands whose model that is. Who has not uploaded before is not judged.
    """
    senders = [client for client in uploads if client in known]
    if not senders:
        return {}
    wanted = sorted({*senders, *(model for client in senders for model in sent[client])})
    place = {model: row for row, model in enumerate(wanted)}
    before, now = sketch([known[model] for model in wanted]), sketch([uploads[client] for client in senders])
    found: dict[int, int] = {}
    for client, upload in zip(senders, now, strict=True):
        own = before[place[client]]
        if torch.equal(upload, own):
            found[client] = client
            continue
        for model in sent[client]:
            given = before[place[model]]
            if (upload - given).norm() <= LEFT * (own - given).norm():
                found[client] = model
    return found


@dataclass(frozen=True)
class State(paper.State):
    """The server's state, and which models are copies."""

    copies: Offsets | None = None  # for each client, the first of the set of near copies that its model is in


@register("fedfomo-robust")
@dataclass(frozen=True)
class RobustFedFomo(FedFomo):
    """FedFomo with defences against malicious clients, each switched on by an option."""

    check_mixture: bool = False
    """Evaluate the mixture too, and keep the better of reference and own model where it is worse than these."""
    one_slot_for_copies: bool = False
    """Of models that are nearly the same, send a client no more than one."""
    weight_limit: NonNegative = 0.0
    """Clip uploaded weights at this many times the round's median; 0: take them as they are."""
    new_head_epochs: CountOrZero = 0
    """Epochs to retrain the last layer from its initial value after the last round, which removes backdoors."""
    flag_free_riders: bool = False
    """Name clients that upload what they were sent, or sent before; nothing else changes."""

    def start_server(self, start: FederationInfo) -> State:
        """Start without models, and with P = diag(1, …, 1)."""
        return State.start(start.num_clients)

    def available(self, state: paper.State, to: ClientId, rng: torch.Generator) -> Tensor:
        """Leave out all but the best of each set of copies."""
        available, copies = super().available(state, to, rng), cast(State, state).copies
        return available if copies is None else deduplicate(copies, state.affinity.row(to), available, rng)

    def aggregate(self, state: paper.State, uploads: Mapping[ClientId, Upload]) -> paper.State:
        """Clip the weights, and find copies."""
        if self.weight_limit:
            reports = clipped({n: upload.findings.increments for n, upload in uploads.items()}, self.weight_limit)
            uploads = {n: replace(u, findings=replace(u.findings, increments=reports[n])) for n, u in uploads.items()}
        after = super().aggregate(state, uploads)
        if not self.one_slot_for_copies:
            return after
        copies = near_duplicates(after.last_uploaders, after.models, after.affinity.size)
        return replace(cast(State, after), copies=copies)

    def flag_uploads(
        self, state: paper.State, downloads: Mapping[ClientId, Download], uploads: Mapping[ClientId, Upload]
    ) -> dict[ClientId, str]:
        """Name clients that uploaded nearly what they had."""
        if not self.flag_free_riders:
            return {}
        models = {client: upload.model for client, upload in uploads.items()}
        sent = {client: downloads[client].ids.tolist() for client in uploads}
        return {
            client: "its own last model again" if client == model else f"nearly the model of client {model}"
            for client, model in find_free_riders(models, state.models, sent).items()
        }

    def accept(
        self, client: Client, memory: Memory, candidates: Sequence[Tensor], losses: Tensor, mixing: Tensor
    ) -> Tensor:
        """Reject a mixture that is worse than what the client had."""
        if not self.check_mixture:
            return mixing
        loss = client.validation_losses((mix(memory.reference, candidates, mixing),)).item()
        return reject_worse_mixture(mixing, loss, float(losses[0]), float(losses[1]))

    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Retrain the last layer of the model that is used in the end."""
        personal = super().personalise(client, download, memory)
        return replace(personal, model=retrain_head(client, personal.model, self.new_head_epochs))
