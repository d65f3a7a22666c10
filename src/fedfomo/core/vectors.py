"""Arithmetic on models as flat vectors θ, in float64, without whole copies in float64."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

MIXED_AT_ONCE = 2**16  # coordinates whose float64 working copies stay in a processor's cache


def mix(reference: Tensor, models: Sequence[Tensor], mixing: Tensor) -> Tensor:
    """Return θ + Σ_n w_n (θ_n − θ), over the models with a positive weight."""
    # A weight of 0 times an infinite coordinate would be NaN.
    used = [(model, weight) for model, weight in zip(models, mixing.tolist(), strict=True) if weight > 0]
    mixed = torch.empty_like(reference)
    for begin in range(0, reference.numel(), MIXED_AT_ONCE):
        block = slice(begin, begin + MIXED_AT_ONCE)
        start = reference[block].double()
        total, difference = start.clone(), torch.empty_like(start)
        for model, weight in used:
            total.add_(difference.copy_(model[block]).sub_(start), alpha=weight)
        mixed[block] = total
    return mixed


def distances_from(reference: Tensor, models: Sequence[Tensor], num_trainable: int, norm: str = "l2") -> Tensor:
    """Return ‖θ_n − θ‖ over the trainable coordinates, "l2" or "l1"; ∞ for a model that is not finite."""
    start = reference[:num_trainable].double()
    difference = torch.empty_like(start)
    order = {"l2": 2, "l1": 1}[norm]
    distances: list[float] = []
    for model in models:
        distance = float(torch.linalg.vector_norm(difference.copy_(model[:num_trainable]).sub_(start), ord=order))
        # One broken coordinate breaks the norm, so only buffers, if there are any, need a look of their own.
        buffers_are_finite = model.numel() == num_trainable or bool(torch.isfinite(model[num_trainable:]).all())
        distances.append(distance if math.isfinite(distance) and buffers_are_finite else torch.inf)
    return torch.tensor(distances, dtype=torch.float64)


def first_of_largest(values: Tensor, number: int, order: Tensor | None = None) -> Tensor:
    """Return the positions of the largest values in descending order, equal ones as they come in `order`.

    `order` has every position once; without it they come as they lie. The positions are the first of a stable sort,
    which takes ten times as long for ten of ten thousand.
    """
    order = torch.arange(len(values)) if order is None else order
    if 0 < number < len(values):
        largest, positions = torch.topk(values, number, sorted=True)
        is_above = largest > largest[-1]
        if bool((largest[is_above].diff() < 0).all()):  # they have one order, and those that equal the last are left
            above = positions[is_above]
            return torch.cat((above, _first_equal(values, largest[-1], order, number - len(above))))
    return order[torch.argsort(values[order], descending=True, stable=True)][: max(number, 0)]


def _first_equal(values: Tensor, value: Tensor, order: Tensor, number: int) -> Tensor:
    """Return the first positions in an order that hold a value: among the first hundred, or wherever they are."""
    for looked_at in (order[:100], order):
        found = looked_at[values[looked_at] == value][:number]
        if len(found) == number:
            break
    return found


def without(ascending: Tensor, value: int) -> Tensor:
    """Return ascending numbers, each there once, without one of them; nothing changes if it is not among them."""
    place = int(torch.searchsorted(ascending, value))
    rest = place + int(place < len(ascending) and int(ascending[place]) == value)
    return torch.cat((ascending[:place], ascending[rest:]))


def finite_or(model: Tensor, otherwise: Tensor) -> Tensor:
    """Return a model, or another in its place if a coordinate is not finite, because a training diverged."""
    return model if bool(torch.isfinite(model).all()) else otherwise
