"""A report of a Flower app's run with `FedFomoStrategy`: what its server knows of the nodes, who values whom."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.app import Message

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.metrics import Score
from fedfomo.report.data import ClientFacts, FinalResult, ReportInput, Reproduce

Line = dict[str, Any]


class RoundLog:
    """What happened in each round, as reports want it, with nodes by their slots."""

    def __init__(self, metric: str) -> None:
        self.lines: list[Line] = []
        self._metric = metric

    def begin(self, round: int, cohort: Iterable[int]) -> None:
        """Begin a round, whose number is from 1."""
        traffic = {"models_down": None, "bytes_down": None, "bytes_up": None}
        named = {part: {} for part in ("uploads", "refused", "suspected", "after_update", "after_training")}
        self.lines.append({"round": round - 1, "cohort": list(cohort), "traffic": traffic, **named})

    def add_uploads(self, uploaded: Iterable[int], replied: Iterable[int]) -> None:
        """Note who uploaded, and whose reply was refused."""
        line = self.lines[-1]
        line["uploads"] = {str(slot): {} for slot in uploaded}
        line["refused"] = {str(slot): "see the log" for slot in replied if str(slot) not in line["uploads"]}

    def add_scores(self, replies: Sequence[Message], slots: Mapping[int, int], weighted_by: str) -> None:
        """Note what nodes say of their own models."""
        for reply in (reply for reply in replies if reply.has_content()):
            (metrics,) = reply.content.metric_records.values()
            loss, metric = (_number(metrics.get(name)) for name in ("loss", self._metric))
            score = Score(loss, metric, int(_number(metrics[weighted_by])))
            self.lines[-1]["after_training"][str(slots[reply.metadata.src_node_id])] = score.as_dict()


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def report_input(
    algorithm: AnyAlgorithm, log: RoundLog, names: Sequence[str], affinity: list[list[float]], metric: str, seed: int
) -> ReportInput:
    """Put together what a report is made from."""
    last: dict[int, Score] = {}
    for line in log.lines:
        last |= {int(slot): Score.from_dict(told) for slot, told in line["after_training"].items()}
    scores = {slot: last.get(slot, Score(math.nan, math.nan, 0)) for slot in range(len(names))}
    return ReportInput(
        title=f"A Flower app with {len(names)} nodes",
        method="fedfomo",
        algorithm=algorithm,
        seed=seed,
        rounds_planned=len(log.lines),
        clients=[ClientFacts(name, None, None, scores[slot].num_examples) for slot, name in enumerate(names)],
        lines=log.lines,
        seconds={},
        ended={"fedfomo": FinalResult(scores, 0, gradients=0, examples=None)},
        affinity=affinity,
        mixing=None,
        own_targets=False,
        reproduce=Reproduce("flwr run", "", {}, {name: version(name) for name in ("fedfomo", "flwr")}),
        metric=metric,
        word="node",
        data="Each node's own.",
        is_simulated=False,
        notes=[
            "Scores are what nodes report of their own models. Bytes are not counted.",
            "Noise that a node adds by itself is not known here.",
        ],
    )


def write(facts: ReportInput, path: Path) -> Path:
    """Write the page."""
    from fedfomo.report.build import build_report_data
    from fedfomo.report.page import write_report

    write_report(build_report_data(facts), path)
    return path
