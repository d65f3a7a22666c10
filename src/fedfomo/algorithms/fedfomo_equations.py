"""FedFomo's equations, one function each, free of whoever computes them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Two models this close are the same model: a loss gap between them is noise, not improvement.
TINY_DISTANCE = 1e-12
# Coordinates whose float64 working copies stay in a processor's cache.
MIXED_AT_ONCE = 2**16


def first_order_weights(reference_loss: float, losses: Tensor, distances: Tensor) -> Tensor:
    """Eq. 3: w_n = (L_i(θ_i^{t-1}) − L_i(θ_n^t)) / ‖θ_n^t − θ_i^{t-1}‖, signed; 0 where that is not a number."""
    weights = (reference_loss - losses.double()) / distances.double()
    usable = torch.isfinite(weights) & torch.isfinite(distances) & (distances > TINY_DISTANCE)
    return torch.where(usable, weights, 0.0)


def mixing_weights(weights: Tensor) -> Tensor:
    """Below Eq. 3: w*_n = max(w_n, 0) / Σ max(w_n, 0); all zeros if no weight is positive."""
    positive = torch.where(torch.isfinite(weights), weights, 0.0).clamp(min=0.0)
    if not bool((positive > 0).any()):
        return torch.zeros_like(positive)
    scaled = positive / positive.max()  # a sum of huge weights would overflow
    return scaled / scaled.sum()


def fall_back_to_own(mixing: Tensor) -> Tensor:
    """Return w*, or if nobody helps, all of the own model, which is the first candidate.

    Departs from the paper, in which the client then stays at the reference and its last training is lost.
    """
    if bool((mixing > 0).any()):
        return mixing
    kept = torch.zeros_like(mixing)
    kept[0] = 1.0
    return kept


def mix(reference: Tensor, models: Tensor | Sequence[Tensor], mixing: Tensor) -> Tensor:
    """The federated update: θ_i^t ← θ_i^{t-1} + Σ_n w*_n (θ_n^t − θ_i^{t-1})."""
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


def federated_update(
    reference: Tensor,
    candidates: Sequence[Tensor],
    reference_loss: float,
    losses: Sequence[float],
    num_trainable: int,
    norm: str,
    can_judge: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Move from the reference towards the candidates that help; return the model, w* and the signed weights w."""
    distances = distances_from(reference, candidates, num_trainable, norm)
    weights = first_order_weights(reference_loss, torch.tensor(losses, dtype=torch.float64), distances)
    mixing = mixing_weights(weights)
    if not can_judge:
        # Departs from the paper: who has nothing to judge by takes all candidates alike, if they are whole.
        mixing = mixing_weights((torch.isfinite(distances) & (distances > TINY_DISTANCE)).double())
    return mix(reference, candidates, mixing), mixing, weights


def leave_one_out_weights(losses_without: Tensor, loss_of_average: float) -> Tensor:
    """Appendix, model averages: w_n ∝ L_i(average without θ_n) − L_i(average of all); the sign is Eq. 3's reversed."""
    weights = losses_without.double() - loss_of_average
    return torch.where(torch.isfinite(weights), weights, 0.0)


def distances_from(reference: Tensor, models: Sequence[Tensor], num_trainable: int, norm: str) -> Tensor:
    """Return ‖θ_n − θ‖ over the whole vector of trainable coordinates, in float64; ∞ for a broken model."""
    start = reference[:num_trainable].double()
    difference = torch.empty_like(start)
    order = {"l2": 2, "l1": 1}[norm]
    distances: list[float] = []
    for model in models:
        distance = float(torch.linalg.vector_norm(difference.copy_(model[:num_trainable]).sub_(start), ord=order))
        # One broken coordinate breaks the norm, so only buffers, if there are any, need a look of their own.
        buffers_are_whole = model.numel() == num_trainable or bool(torch.isfinite(model[num_trainable:]).all())
        distances.append(distance if math.isfinite(distance) and buffers_are_whole else torch.inf)
    return torch.tensor(distances, dtype=torch.float64)


def affinity_increments(weights: Tensor, update: str) -> Tensor:
    """Return what is added to p_i: w itself (paper), or w / |Σ w| (the authors' code)."""
    if update == "raw":
        return weights
    total = weights.sum().abs()
    return weights / total if total > 0 else torch.zeros_like(weights)
