"""Whose models a client of FedFomo is sent: those that it values most, and some at random."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def exploration_rate(round: int, start: float, decay: float) -> float:
    """Return ε of the federated update in round t: start − decay · t, not below 0; there is none in round 0."""
    return max(0.0, start - decay * round)


def choose_downloads(
    affinity: tuple[Tensor, Tensor], available: Tensor, num: int, epsilon: float, rng: torch.Generator
) -> list[int]:
    """Fill `num` slots from `available`: each with probability ε at random, else by the best p; ties at random.

    `affinity` holds the ids and the values of a row's entries; all others are 0. `available` ascends.
    """
    count = available.numel()
    random_order = torch.randperm(count, generator=rng)
    tie_breaks = torch.randperm(count, generator=rng)
    explore = torch.rand(min(num, count), generator=rng, dtype=torch.float64) < epsilon
    # Of the random order, no more is ever looked at than the slots and what the ranking takes before.
    at_random: list[int] = available[random_order[: 2 * num]].tolist()
    return fill_slots(rank(affinity, available, tie_breaks, num), at_random, explore.tolist())


def rank(affinity: tuple[Tensor, Tensor], available: Tensor, tie_breaks: Tensor, num: int) -> list[int]:
    """Return the first `2 num` ids by descending p, equal ones in the order of `tie_breaks`, a permutation.

    Clients are many and entries few: only whoever has an entry, and the first who have none, can be among them.
    """
    ids, values = affinity
    known: dict[int, float] = dict(zip(ids.tolist(), values.tolist(), strict=True))
    first = 2 * num + len(known)
    candidates: list[int] = available[tie_breaks[:first]].tolist()
    if known and first < available.numel():
        rest = tie_breaks[first:]
        has_entry = torch.zeros(available.numel() + 1, dtype=torch.bool)
        places = torch.searchsorted(available, ids)
        has_entry[places[available[places.clamp(max=available.numel() - 1)] == ids]] = True
        candidates += available[rest[has_entry[rest]]].tolist()
    return sorted(candidates, key=lambda n: -known.get(n, 0.0))[: 2 * num]


def fill_slots(ranked: Sequence[int], at_random: Sequence[int], explore: Sequence[bool]) -> list[int]:
    """Take the next unused id of the random order for an exploring slot, of the ranking for any other."""
    chosen: dict[int, None] = {}  # keeps the order, and knows its members
    unused = {order: iter(ids) for order, ids in ((True, at_random), (False, ranked))}
    for exploring in explore:
        chosen[next(n for n in unused[exploring] if n not in chosen)] = None
    return list(chosen)
