"""The course of a run, from its log: who judged whom in each round, what was sent, who failed, every client's curve."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedfomo.core.data import is_enough
from fedfomo.report.data import Curves, Diagnostics, Evaluation, ReportInput, RoundFacts, Rows

TINY_VALIDATION = 10  # examples; with fewer, a loss says little about a model
MOST_JUDGED = 150_000  # single judgements that a page carries; of longer histories, rounds are left out evenly
MOST_COURSES = 100_000  # likewise, rounds × clients of the curves


@dataclass
class _Tally:
    """What is counted while the log is read."""

    num_clients: int
    met: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    out_of_budget: set[int] = field(default_factory=set[int])
    suspected: Counter[int] = field(default_factory=Counter[int])  # rounds in which a client's upload was odd
    fell_back: list[int] = field(init=False)
    took_part: list[int] = field(init=False)
    refused: list[int] = field(init=False)
    dropped_out: list[int] = field(init=False)
    reasons: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.fell_back, self.took_part, self.refused, self.dropped_out = ([0] * self.num_clients for _ in range(4))
        self.reasons = [""] * self.num_clients


def history(source: ReportInput) -> tuple[list[RoundFacts], Diagnostics]:
    """Read the log: what happened in each round, and what went wrong."""
    tally = _Tally(len(source.clients))
    rounds = [_round(source, line, tally) for line in source.lines]
    notes = list(source.notes)
    tiny = [c.name for c in source.clients if c.validation is not None and 0 < c.validation < TINY_VALIDATION]
    if tiny:
        few = ", ".join(tiny[:8]) + (f" and {len(tiny) - 8} more" if len(tiny) > 8 else "")
        notes.append(f"Fewer than {TINY_VALIDATION} validation examples, so judgements are mostly noise: {few}.")
    if tally.out_of_budget:
        notes.append(f"Privacy budgets ran out: {len(tally.out_of_budget)} clients stopped before the end.")
    if tally.suspected:
        rounds_of = ", ".join(f"{source.clients[n].name} ({number})" for n, number in sorted(tally.suspected.items()))
        notes.append(f"Uploads that hold nearly nothing new, by rounds; rounds.jsonl says what they are: {rounds_of}.")
    return rounds, Diagnostics(tally.fell_back, tally.took_part, tally.refused, tally.reasons, tally.dropped_out, notes)


def _round(source: ReportInput, line: Mapping[str, Any], tally: _Tally) -> RoundFacts:
    judgements: list[Evaluation] = []
    before = len(tally.met)
    for client, upload in line["uploads"].items():
        found = source.algorithm.evaluated_models(upload) if source.algorithm else None
        if found is not None:
            judgements.append(Evaluation(int(client), [*found.clients], [*found.weights], [*found.shares]))
            tally.met.update((int(client), giver) for giver in found.clients if giver != int(client))
            tally.fell_back[int(client)] += line["round"] > 0 and not found.is_update
    for client in line["cohort"]:
        tally.took_part[client] += 1
        holds = source.clients[client]
        is_spent = client in line.get("budget_spent", ())
        tally.out_of_budget.update([client] if is_spent else [])
        is_missing = str(client) not in line["uploads"] and str(client) not in line["refused"] and not is_spent
        has_nothing = holds.train is not None and not is_enough(holds.train, holds.validation or 0)
        tally.dropped_out[client] += is_missing and not has_nothing
    for client, reason in line["refused"].items():
        tally.refused[int(client)] += 1
        tally.reasons[int(client)] = reason
    tally.suspected.update(int(client) for client in line.get("suspected", {}))
    pairs = tally.num_clients * (tally.num_clients - 1)
    seconds = source.seconds.get(line["round"])
    return RoundFacts(
        round=line["round"] + 1,
        judgements=judgements,
        new_pairs=len(tally.met) - before,
        pairs_met=len(tally.met) / pairs if pairs else 0.0,
        epsilon=source.algorithm.exploration(line["round"]) if source.algorithm else None,
        models_down=line["traffic"]["models_down"],
        bytes_down=line["traffic"]["bytes_down"],
        bytes_up=line["traffic"]["bytes_up"],
        training_seconds=seconds["training"] if seconds else None,
        scoring_seconds=seconds["scoring"] if seconds else None,
        other_seconds=max(0.0, seconds["all"] - seconds["training"] - seconds["scoring"]) if seconds else None,
    )


def thinned(rounds: list[RoundFacts]) -> list[RoundFacts]:
    """Leave the judgements of some rounds out where there are too many; the last round's always stay."""
    total = sum(len(judgement.givers) for facts in rounds for judgement in facts.judgements)
    step = max(1, math.ceil(total / MOST_JUDGED))
    return [
        facts if (rounds[-1].round - facts.round) % step == 0 else replace(facts, judgements=[]) for facts in rounds
    ]


def curves(source: ReportInput) -> Curves:
    """Return every client's figures by round; of long runs, those of some rounds."""
    number = len(source.clients)
    step = max(1, math.ceil(len(source.lines) * number / MOST_COURSES))
    lines = [line for line in source.lines if (len(source.lines) - 1 - line["round"]) % step == 0]

    def row(values: Mapping[str, Any], pick: str | int) -> list[float | None]:
        found: list[float | None] = [None] * number
        for client, value in values.items():
            if isinstance(pick, str) or pick < len(value):
                found[int(client)] = value[pick]
        return found

    def rows(part: str, pick: str | int) -> Rows:
        return [row(line.get(part, {}), pick) for line in lines]

    def losses(model: str) -> Rows:
        first = source.algorithm.evaluated_first if source.algorithm else ()
        is_known = model in first and any(line.get("judged") for line in lines)
        return rows("judged", first.index(model)) if is_known else []

    return Curves(
        rounds=[line["round"] + 1 for line in lines],
        test_updated=rows("after_update", "metric"),
        test_trained=rows("after_training", "metric"),
        validation_reference=losses("reference"),
        validation_own=losses("own"),
    )
