"""What is guaranteed to whose records, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fedfomo.privacy.accountant import EpsilonSpent
from fedfomo.privacy.config import Privacy


def describe_privacy(spent: Mapping[int, EpsilonSpent], privacy: Privacy) -> list[str]:
    """Say what is guaranteed, and what is not; the client that spent most decides."""
    training = max(one.training for one in spent.values())
    validation = max(one.validation for one in spent.values())
    sentences = [
        f"training records: {_guarantee(training)}; validation records: {_guarantee(validation)};"
        f" every record: {_guarantee(max(training, validation))} (the client that spent most, δ = {privacy.delta:g})"
    ]
    if privacy.noise == 0:
        sentences.append("gradients were clipped, and no noise was added: that protects nobody")
    if privacy.mode == "research":
        sentences.append("research mode: the noise follows from the seed, so whoever knows that has no noise to face")
    return sentences


def _guarantee(epsilon: float) -> str:
    return f"ε = {epsilon:.2f}" if math.isfinite(epsilon) else "no guarantee"
