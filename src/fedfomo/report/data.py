"""What a report is made from, and everything that it shows, as plain values: the page adds nothing of its own."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.model import Score
from fedfomo.report.intervals import Estimate
from fedfomo.report.per_example import PerExampleScores
from fedfomo.report.text import NextStep

Rows = list[list[float | None]]
"""One list a round, with one value a client; None where there is none."""


@dataclass(frozen=True)
class ClientFacts:
    """Who a client is and what it holds."""

    name: str
    train: int | None  # numbers of examples; None: only the client itself knows
    validation: int | None
    test: int
    group: int | None = None  # the distribution behind its training examples, where that is known
    target: int | None = None  # likewise, of its validation and test data
    train_labels: list[int] | None = None  # how many of each
    target_labels: list[int] | None = None  # likewise, of its test examples


@dataclass(frozen=True)
class MethodFacts:
    """How one method ended, for every client; clients without test examples, or a finite figure on them, have none."""

    method: str
    title: str  # its name as papers write it
    scores: list[Estimate | None]
    gains: list[Estimate | None]  # against training alone, on the same examples; none for training alone itself
    mean: float  # over clients, of all seeds that the report counts
    mean_gain: Estimate | None  # likewise
    helped: int  # clients whose whole interval is above 0, with the report's own seed
    harmed: int  # likewise below
    undecided: int
    bytes_moved: int
    gradients: int
    further: dict[str, float] = field(default_factory=dict[str, float])  # means of metrics beside the primary one
    by_class: list[list[list[int]]] | None = None  # of two classes: by client, right ones and all, class 0 and 1


@dataclass(frozen=True)
class Evaluation:
    """What one client found out about some others, itself among them, in one round."""

    receiver: int
    givers: list[int]
    utilities: list[float]  # signed: what was added to its row of the affinity
    weights: list[float]  # how much of each it mixed in


@dataclass(frozen=True)
class RoundFacts:
    """What happened in one round."""

    round: int  # from 1
    judgements: list[Evaluation]
    new_pairs: int  # receivers and givers that met for the first time
    pairs_met: float  # share of all pairs of different clients that have met by now
    epsilon: float | None  # the chance of a random model in a slot, where the method has one
    models_down: float | None  # None: it was not logged
    bytes_down: int
    bytes_up: int
    training_seconds: float | None
    scoring_seconds: float | None
    other_seconds: float | None  # mixing, and keeping what came of it


@dataclass(frozen=True)
class Curves:
    """Every client's course; rows are rounds."""

    rounds: list[int]  # those that have rows
    test_updated: Rows  # the metric after the federated update
    test_trained: Rows  # and after the local training that follows
    validation_reference: Rows  # loss of the model that it had; no rows: the method does not evaluate it
    validation_own: Rows  # loss of the model that it had trained


@dataclass(frozen=True)
class Diagnostics:
    """What went wrong, or might have."""

    fell_back: list[int]  # rounds in which neither its own training nor a model it was sent helped a client: it stayed
    took_part: list[int]  # rounds in which a client was asked to take part
    refused: list[int]  # uploads of each client that were refused
    reasons: list[str]  # why, of each client's last one
    dropped_out: list[int]  # rounds in which a client was asked and nothing came back
    notes: list[str]


@dataclass(frozen=True)
class PrivacyFacts:
    """What differential privacy was left: the largest ε of any client; none where there is no guarantee.

    Without a δ, every client settles it by itself, and nobody else knows.
    """

    training: float | None
    validation: float | None
    delta: float | None


@dataclass(frozen=True)
class Reproduce:
    """How to get the same again."""

    command: str
    config: str
    hashes: dict[str, str]
    versions: dict[str, str]


@dataclass(frozen=True)
class FinalResult:
    """How one method ended, on the clients of the report."""

    scores: Mapping[int, Score]
    bytes_moved: int
    gradients: int
    examples: PerExampleScores | None  # None: its models, or the data, are not at hand
    seed_means: Mapping[int, float] = field(default_factory=dict[int, float])  # by seed, the report's own among them
    seed_metrics: Mapping[int, Mapping[str, float]] = field(default_factory=dict[int, Mapping[str, float]])
    is_of_sets: bool = False  # whether the primary metric is of whole sets, and no mean over examples
    seed_gains: Mapping[int, list[float]] = field(default_factory=dict[int, list[float]])  # over training alone


@dataclass(frozen=True)
class ReportInput:
    """One run, with the runs that it is measured against."""

    title: str
    method: str
    algorithm: AnyAlgorithm | None  # None: it was an object, or of a file, that is not to be found
    seed: int
    rounds_planned: int
    clients: list[ClientFacts]
    lines: Sequence[Mapping[str, Any]]  # of the log, one a round
    seconds: Mapping[int, Mapping[str, float]]  # by round, where it is known
    ended: Mapping[str, FinalResult]  # by method
    affinity: list[list[float]] | None
    mixing: list[list[float]] | None
    own_targets: bool  # whether everybody is judged on data like its own
    reproduce: Reproduce
    metric: str = "accuracy"
    word: str = "client"  # what clients are called
    data: str = ""  # whose data they are
    date: str = ""  # of the last result
    is_simulated: bool = True
    notes: list[str] = field(default_factory=list[str])
    advice: str = ""
    privacy: PrivacyFacts | None = None


@dataclass(frozen=True)
class ReportData:
    """One run, with the runs that it is measured against."""

    title: str
    method: str
    metric: str  # what the figures are called
    is_share: bool  # whether they are shares, to be shown in per cent
    word: str  # what clients are called
    titles: dict[str, str]  # of methods
    verdict: str
    lede: str
    about: list[tuple[str, str]]  # date, data, what was sent, privacy, by what they are called
    seed: int
    seeds: list[int]  # behind means
    rounds_planned: int
    is_finished: bool
    clients: list[ClientFacts]
    label_names: list[str]
    methods: list[MethodFacts]  # training alone first, if it was run
    rounds: list[RoundFacts]
    is_thinned: bool  # whether the judgements of some rounds were left out, for a page that is not too large
    curves: Curves
    affinity: list[list[float]] | None  # at the end, receiver × giver; None: not known, or too large for a page
    mixing: list[list[float]] | None  # likewise, what was taken over all rounds
    gives: list[float] | None  # weight of each client's model with others, a round
    takes: list[float] | None  # weight of others' models with each client, a round
    cross: list[list[float]] | None  # each final model (row) on each client's target (column)
    why_not_crossed: str
    receivers: list[int]  # the order in which they are drawn
    givers: list[int]
    sentences: list[str]  # one a client
    next_steps: list[NextStep]  # likewise
    advice: str  # what is missing, and how to get it
    health: Diagnostics
    privacy: PrivacyFacts | None  # None: there was none
    reproduce: Reproduce

    @property
    def lines(self) -> list[str]:
        """The verdict, and each client's sentence with its next step."""
        if not self.sentences:
            return []
        steps = self.next_steps or [NextStep("unknown", "")] * len(self.sentences)
        clients = [f"{said} {step.text}".rstrip() for said, step in zip(self.sentences, steps, strict=True)]
        return [f"{self.verdict}. {self.lede}", *clients]

    def to_json(self) -> str:
        """Spell the facts out as strict, compact JSON; four digits are more than any chart shows."""
        return json.dumps(compact(asdict(self)), allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def compact(value: Any) -> Any:
    """Round every number to four significant digits, and write what is not a number as null."""
    if isinstance(value, float):
        return _rounded(value) if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: compact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [compact(item) for item in value]
    return value


def _rounded(value: float) -> float | int:
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() and abs(short) < 2**53 else short
