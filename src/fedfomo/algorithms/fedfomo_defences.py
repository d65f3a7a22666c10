"""What FedFomo can do about clients that mean no good; every piece is an option, and off unless asked for.

A mixture is judged before it is used, its last layer is trained anew, copies of one model share a slot, reports are
clipped, and who uploads nothing new is named. Models are compared by short sketches, made once from each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedfomo.core.client import Client
from fedfomo.core.rng import stream

SKETCHED = 256  # numbers that stand for a model: distances between sketches are true to about 5 %
# Measured, as docs/algorithms/fedfomo.md tells: copies lie within this part of their usual distance from others, and
COPY = 0.01
# free riders leave less than this part of the way to what they were sent.
LEFT = 0.1
ROWS_AT_ONCE = 1024


def reject_worse_mixture(mixing: Tensor, mixture_loss: float, reference_loss: float, own_loss: float) -> Tensor:
    """Return the mixing weights if the mixture is no worse than what the client had; else those of the better model.

    The own model is the first candidate; weights of 0 mean the reference. Losses that are not numbers decide nothing.
    """
    if not mixture_loss > min(reference_loss, own_loss):
        return mixing
    kept = torch.zeros_like(mixing)
    kept[0] = float(own_loss < reference_loss)
    return kept


def retrain_head(client: Client, model: Tensor, epochs: int) -> Tensor:
    """After the last round, put the initial model's last layer in place of the model's, and train it on own data."""
    if epochs == 0 or client.round < client.start.rounds or len(client.data.train) == 0:
        return model
    layout = client.start.layout
    is_head = layout.mask(layout.layers()[-1:])
    fresh = torch.where(is_head, client.start.initial, model)
    return client.train(fresh, moving=is_head[: client.num_trainable], epochs=epochs, stays=True, purpose="new head")


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
