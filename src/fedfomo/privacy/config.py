"""What can be set about privacy; without torch, which the command line must not wait for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from fedfomo.errors import require


@dataclass(frozen=True)
class Privacy:
    """Differential privacy of single records, for every client on its own.

    Privacy is off unless `noise` or `epsilon` is set.
    """

    noise: float | None = None
    """Noise on every training step, in units of the clip (σ); 0 clips and adds none, which protects nobody."""
    epsilon: float | None = None
    """Instead of the noise: ε of the training records at the end of the run; the noise is solved for it."""
    clip: float = 1.0
    """Longest gradient that one record may contribute (C)."""
    delta: float = 1e-5
    """Failure probability δ; must be smaller than 1/(number of records of a client)."""
    budget: float | None = None
    """ε at which a client stops, before its training records exceed it, or validation records judged privately."""
    accountant: Literal["rdp", "prv"] = "rdp"
    """How ε is added up: rdp is quick and some 10 % too high (twice at few steps of small batches); prv is tight."""
    validation_noise: float | None = None
    """Noise on every validation loss, in units of what one record can change; by default none, and no guarantee."""
    validation_clip: float = 5.0
    """Largest loss that one record may contribute when models are judged privately."""
    mode: Literal["research", "deployment"] = "research"
    """research draws noise from the seed, so that runs repeat to the bit; deployment draws it from the system."""

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
        require(certain, "privacy.validation_noise must be above 0; leave it out for judgement without a guarantee")

    @property
    def is_on(self) -> bool:
        """Whether training is private, or at least clipped."""
        return self.noise is not None or self.epsilon is not None
