"""What is decided about a run before it starts, beside the problem and the method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedfomo.errors import require


@dataclass(frozen=True)
class SimulationConfig:
    """How long a run is, who takes part, and who does the work."""

    rounds: int = 20
    participation: float = 1.0
    evaluate_every: int = 1
    workers: int = 0  # processes beside this one
    vectorise: bool = False  # whether small clients may be computed together, which is exact to rounding only
    executor: Literal["processes", "ray"] = "processes"  # where workers run: on this machine, or in a Ray cluster
    client_dropout: float = 0.0  # chance that a client of a round fails before it trains
    late_fraction: float = 0.0  # chance that it trains, but uploads after the round has closed
    stop_after: int | None = None  # rounds without a gain on validation data after which a run stops; None: never

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds must be at least 1, not {self.rounds}")
        share = self.participation
        require(0 < share <= 1, f"participation must be above 0 and at most 1, not {share}")
        require(self.evaluate_every >= 1, f"evaluate_every must be at least 1, not {self.evaluate_every}")
        require(self.workers >= 0, f"workers must be at least 0 (0: this process alone), not {self.workers}")
        require(self.executor in ("processes", "ray"), f"executor must be processes or ray, not {self.executor!r}")
        is_patient = self.stop_after is None or self.stop_after >= 1
        require(is_patient, f"stop_after must be at least 1 round without a gain, not {self.stop_after}")
        chances = self.client_dropout, self.late_fraction
        is_fair = min(chances) >= 0 and sum(chances) < 1
        require(is_fair, f"client_dropout and late_fraction must be at least 0 and together below 1, not {chances}")
