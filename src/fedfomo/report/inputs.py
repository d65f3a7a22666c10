"""What a report is made from, wherever it came from: a run's folder, or a call of `federate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedfomo.core.model import Score
from fedfomo.report.data import ClientFacts, PrivacyFacts, Reproduce
from fedfomo.report.per_example import PerExampleScores


@dataclass(frozen=True)
class FinalResult:
    """How one method ended, on the clients of the report."""

    scores: Mapping[int, Score]
    bytes_moved: int
    gradients: int
    examined: PerExampleScores | None  # None: its models, or the data, are not at hand
    seed_means: list[float] = field(default_factory=list[float])
    gains_by_seed: list[list[float]] = field(default_factory=list[list[float]])  # of every client, over training alone


@dataclass(frozen=True)
class ReportInput:
    """One run, with the runs that it is measured against."""

    title: str
    method: str
    options: Mapping[str, Any]
    judged_first: Sequence[str]  # which models' losses a client asks for first in every round, if the method says so
    seed: int
    rounds_planned: int
    clients: list[ClientFacts]
    lines: Sequence[Mapping[str, Any]]  # of the log, one a round
    seconds: Mapping[int, Mapping[str, float]]  # by round, where it is known
    ended: Mapping[str, FinalResult]  # by method
    affinity: list[list[float]] | None
    taken: list[list[float]] | None
    own_targets: bool  # whether everybody is judged on data like its own
    reproduce: Reproduce
    metric: str = "accuracy"
    notes: list[str] = field(default_factory=list[str])
    advice: str = ""
    privacy: PrivacyFacts | None = None
