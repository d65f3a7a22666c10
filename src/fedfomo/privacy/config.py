"""What can be set about privacy; without torch, which the command line must not wait for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedfomo.errors import require


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of single records, accounted for each client separately.

    Privacy is off unless `noise` or `epsilon` is set.
    """

    noise: float | None = None
    """Noise multiplier σ of DP-SGD, in units of the clip; 0 clips without noise and gives no guarantee."""
    epsilon: float | None = None
    """Target ε of the training records at the end of the run, in place of noise, which is computed from it for a
    client that takes part in every round; with less participation the ε reached is smaller."""
    clip: float = 1.0
    """Norm C to which the gradient of each record is clipped."""
    delta: float = 1e-5
    """Failure probability δ; must be smaller than 1/(number of records of a client)."""
    budget: float | None = None
    """Largest ε of a client's training records, and of its validation records; it stops before. Exact evaluations
    without validation_noise are not counted."""
    accountant: Literal["rdp", "prv"] = "rdp"
    """rdp is fast and overestimates ε by about 10 % (100 % at few steps of small batches); prv is tight."""
    validation_noise: float | None = None
    """Noise on each validation loss, in units of its sensitivity to one record; by default none, without guarantee."""
    validation_clip: float = 5.0
    """Value to which the loss of each validation record is clipped when models are evaluated privately."""
    mode: Literal["research", "deployment"] = "research"
    """research draws noise from the seed, so that runs are reproducible; deployment draws it from the system."""

    def __post_init__(self) -> None:
        for name in ("noise", "validation_noise"):
            value = getattr(self, name)
            known = value is None or (math.isfinite(value) and value >= 0)
            require(known, f"privacy.{name} must be a number of at least 0, not {value}")
        for name in ("clip", "validation_clip"):
            value = getattr(self, name)
            require(math.isfinite(value) and value > 0, f"privacy.{name} must be above 0 and finite, not {value}")
        for name in ("epsilon", "budget"):
            value = getattr(self, name)
            known = value is None or (math.isfinite(value) and value > 0)
            require(known, f"privacy.{name} must be above 0 and finite, not {value}")
        require(0 < self.delta < 1, f"privacy.delta must be between 0 and 1, not {self.delta}")
        both = self.noise is not None and self.epsilon is not None
        require(not both, "give privacy.noise or privacy.epsilon, not both: one follows from the other")
        lone = [name for name in ("budget", "validation_noise") if getattr(self, name) is not None]
        on = self.is_on or not lone
        require(on, f"privacy.{''.join(lone[:1])} needs privacy.noise or privacy.epsilon: training is not private yet")
        certain = self.noise != 0 or self.budget is None
        require(certain, "privacy.budget cannot be kept without noise: give a privacy.noise above 0")
        certain = self.validation_noise != 0
        require(certain, "privacy.validation_noise must be above 0; leave it out for evaluation without a guarantee")

    @property
    def is_on(self) -> bool:
        """Whether training is private, or at least clipped."""
        return self.noise is not None or self.epsilon is not None
