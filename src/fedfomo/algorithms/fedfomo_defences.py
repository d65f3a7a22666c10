"""What FedFomo can do about clients that mean no good; every piece is an option, and off unless asked for.

A mixture is judged before it is used, copies of one model share a slot, reports are clipped, and uploads that are no
more than what their sender had before are named. Models are compared by short sketches, made once from each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from fedfomo.randomness import stream

SKETCHED = 256  # numbers that stand for a model: distances between sketches are true to about 5 %
NEAR = 0.1  # of a usual distance; what was measured of honest clients is in the page on FedFomo
ROWS_AT_ONCE = 1024


def checked_mixing(mixing: Tensor, mixture_loss: float, reference_loss: float, own_loss: float) -> Tensor:
    """Return the mixing weights if the mixture is no worse than what the client had; else those of the better model.

    The own model is the first candidate; weights of 0 mean the reference. Losses that are not numbers decide nothing.
    """
    if not mixture_loss > min(reference_loss, own_loss):
        return mixing
    kept = torch.zeros_like(mixing)
    kept[0] = float(own_loss < reference_loss)
    return kept


def clipped(reports: Mapping[int, Tensor], limit: float) -> dict[int, Tensor]:
    """Clip weights at `limit` times what is usual: the median, over clients, of the median |w| of each."""
    sizes = {client: weights[weights != 0].abs() for client, weights in reports.items()}
    medians = [size.median() for size in sizes.values() if size.numel()]
    if not medians:
        return dict(reports)
    bound = limit * float(torch.stack(medians).median())
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

    Near is what lies within a small part of the distance at which models usually have their nearest neighbour.
    """
    labels = torch.arange(len(sketches))
    if len(sketches) < 3:  # nothing is usual yet
        return labels
    nearest = torch.cat([distances.min(dim=1).values for _, distances in _distances(sketches)])
    limit = NEAR * float(nearest.median())
    pairs = [torch.nonzero(distances <= limit) + torch.tensor([begin, 0]) for begin, distances in _distances(sketches)]
    one, other = torch.cat(pairs).T
    while True:  # a copy of a copy is a copy
        merged = labels.scatter_reduce(0, one, labels[other], "amin")
        if torch.equal(merged, labels):
            return labels
        labels = merged


def _distances(sketches: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the distances of some models at a time to all others, and the place of the first of them."""
    for begin in range(0, len(sketches), ROWS_AT_ONCE):
        distances = torch.cdist(sketches[begin : begin + ROWS_AT_ONCE], sketches)
        here = torch.arange(len(distances))
        distances[here, begin + here] = torch.inf
        yield begin, distances


def one_of_each(copies: Tensor, affinity: tuple[Tensor, Tensor], available: Tensor, rng: torch.Generator) -> Tensor:
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


def nothing_new(
    uploads: Mapping[int, Tensor], known: Mapping[int, Tensor], had: Mapping[int, Sequence[int]]
) -> dict[int, int]:
    """Return whose upload is next to a model that its sender `had`, and which model that is.

    Next to is what lies within a small part of the distance at which uploads usually are from what their sender had.
    """
    senders = [client for client in uploads if had[client]]
    if len(senders) < 3:  # nothing is usual yet
        return {}
    given = sorted({model for client in senders for model in had[client]})
    place = {model: row for row, model in enumerate(given)}
    before, now = sketch([known[model] for model in given]), sketch([uploads[client] for client in senders])
    nearest: list[int] = []
    distances = torch.empty(len(senders), dtype=torch.float64)
    for row, client in enumerate(senders):
        apart = (before[[place[model] for model in had[client]]] - now[row]).norm(dim=1)
        distances[row] = apart.min()
        nearest.append(had[client][int(apart.argmin())])
    limit = NEAR * float(distances.median())
    is_near: list[bool] = (distances <= limit).tolist()
    return {client: model for client, model, near in zip(senders, nearest, is_near, strict=True) if near}
