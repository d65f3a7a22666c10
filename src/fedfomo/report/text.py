"""The sentences of a report: its verdict, and for each client what federating brought it and what to do next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fedfomo.report.intervals import Estimate, more_cases

LEAST_SHARE = 0.01  # who gave less is not named
MOST_NAMED = 4
MINUS = "minus the "  # errors are metrics with their sign turned: higher is better
TITLES = {
    "local": "Training alone",
    "fedavg": "FedAvg",
    "fedavg-finetuned": "FedAvg + fine-tuning",
    "fedfomo": "FedFomo",
    "fedfomo-plus": "FedFomo+",
    "fedprox": "FedProx",
    "ditto": "Ditto",
    "ifca": "IFCA",
    "apfl": "APFL",
    "cfl": "CFL",
    "fedrep": "FedRep",
    "pfedme": "pFedMe",
}


def title_of(method: str) -> str:
    """Return a method's name as papers write it."""
    return TITLES.get(method, method)


def contributors_of(mixing: Sequence[Sequence[float]], names: Sequence[str], client: int) -> dict[str, float]:
    """Return from which others a client took models, and their shares of that, its own left out; the largest first."""
    row = {names[giver]: value for giver, value in enumerate(mixing[client]) if giver != client and value > 0}
    total = sum(row.values())
    return {giver: value / total for giver, value in sorted(row.items(), key=lambda item: -item[1])}


@dataclass(frozen=True)
class Unit:
    """How scores are written: what they are called, and whether they are shares."""

    metric: str = "accuracy"
    is_share: bool = True

    @property
    def name(self) -> str:
        """What scores are called in a sentence: an error, where the metric is minus that."""
        return self.metric.removeprefix(MINUS)

    def score(self, value: float) -> str:
        """Write a score with its unit."""
        value = -value if self.metric.startswith(MINUS) else value
        return figure(value, self.is_share) + (" %" if self.is_share else "")

    def cases(self, score: Estimate, number: int) -> int | None:
        """Return how many cases are right; None: the metric does not count cases."""
        right = score.value * number
        return (
            round(right) if self.metric == "accuracy" and self.is_share and abs(right - round(right)) < 1e-3 else None
        )

    def change(self, gain: Estimate) -> str:
        """Write a difference with its interval."""
        points = " points" if self.is_share else ""
        what = "gain " if self.metric.startswith(MINUS) else ""
        value, low, high = (figure(end, self.is_share, signed=True) for end in (gain.value, gain.low, gain.high))
        return f"{what}{value}{points}, between {low} and {high}" if gain.has_interval else f"{what}{value}{points}"


@dataclass(frozen=True)
class NextStep:
    """What a client should do, by what is known of its gain."""

    kind: Literal["join", "keep", "collect", "either", "unknown"]
    text: str


def site_sentence(
    name: str,
    local: Estimate | None,
    own: Estimate | None,
    gain: Estimate | None,
    contributors: dict[str, float],
    unit: Unit,
    num_test: int,
) -> str:
    """Say what a client gained and from whom."""
    if own is None:
        why = f"the score on {num_test} test cases is not finite" if num_test else "no test cases"
        return f"{name}: {why}, so nothing can be said."
    source = _source(contributors)
    if local is None or gain is None:
        return f"{name}: {_alone(own, unit, num_test)}.{source}"
    right, before = (unit.cases(score, num_test) for score in (own, local))
    if right is not None and before is not None:
        scores = f"{right} of {num_test} right" + (", as alone" if right == before else f" instead of {before}")
    else:
        scores = f"{unit.name} {unit.score(own.value)} instead of {unit.score(local.value)}"
    is_open = not (gain.is_above_zero or gain.is_below_zero)
    return f"{name}: {scores} ({unit.change(gain)}{': undecided' if is_open else ''}).{source}"


def _alone(own: Estimate, unit: Unit, num_test: int) -> str:
    right = unit.cases(own, num_test)
    return f"{unit.name} {unit.score(own.value)}" if right is None else f"{right} of {num_test} right"


def _source(contributors: dict[str, float]) -> str:
    named = [
        f"{giver} ({share:.0%})".replace("%", " %") for giver, share in contributors.items() if share >= LEAST_SHARE
    ]
    if not named:
        return ""
    *first, last = named if len(named) <= MOST_NAMED else [*named[:MOST_NAMED], "others"]
    return f" It learned from {', '.join(first)} and {last}." if first else f" It learned from {last}."


def next_step(own: Estimate | None, gain: Estimate | None, unit: Unit, num_test: int) -> NextStep:
    """Say what a client should do next."""
    if own is None:
        return NextStep("unknown", "Check its training." if num_test else "Collect test cases.")
    if gain is None:
        return NextStep("unknown", "")
    if gain.is_above_zero:
        return NextStep("join", "Join.")
    if gain.is_below_zero:
        return NextStep("keep", "Keep your own model.")
    if not gain.has_interval:
        return NextStep("unknown", "Collect more test cases.")
    more = more_cases(gain, num_test)
    if more is not None:
        return NextStep("collect", f"Collect about {more} more test cases, then decide.")
    largest = figure(max(abs(gain.low), abs(gain.high)), unit.is_share) + (" points" if unit.is_share else "")
    return NextStep("either", f"No difference found: at most {largest} either way.")


def headline(helped: int, undecided: int, harmed: int, mean_gain: Estimate, word: str) -> str:
    """Say in one line how many clients are clearly better off, undecided, and clearly worse off."""
    number = helped + undecided + harmed
    everybody = f"all {number} {word}s" if number > 1 else f"the {word}"
    are = f"{undecided} {'is' if undecided == 1 else 'are'} undecided"
    if helped == number or harmed == number:
        return f"Federating {'helps' if helped else 'harms'} {everybody}"
    if not helped and not harmed:
        if mean_gain.is_above_zero or mean_gain.is_below_zero:
            course = "gains" if mean_gain.is_above_zero else "loses"
            return f"The average {word} {course}, but no single {word} can be sure of it"
        return f"Too early to tell: {everybody} {'are' if number > 1 else 'is'} undecided"
    first = f"helps {helped} of {number} {word}s" if helped else f"harms {harmed} of {number} {word}s"
    second = (f"harms {harmed}" if harmed else "harms none") if helped else "helps none"
    return f"Federating {first} and {second}" + (f"; {are}" if undecided else "")


def lede(means: dict[str, float], mean_gain: Estimate | None, method: str, seeds: Sequence[int], unit: Unit) -> str:
    """Say what the average client gains, and which method has the best average."""
    over = f" over {len(seeds)} seeds" if len(seeds) > 1 else ""
    average = f"Average {unit.name}{over}: {unit.score(means[method])} with {title_of(method)}"
    if mean_gain is not None and "local" in means:
        average += f", {unit.score(means['local'])} alone ({unit.change(mean_gain)})"
    others = {name: mean for name, mean in means.items() if name != method and math.isfinite(mean)}
    if len(others) < 2:
        return f"{average}."
    best = max(others, key=others.__getitem__)
    if others[best] > means[method]:
        return f"{average}. {title_of(best)} is better on average: {unit.score(others[best])}."
    return f"{average}. None of the {len(others)} other methods is better on average."


def figure(value: float, is_share: bool, signed: bool = False) -> str:
    """Write a metric as people read it: shares in per cent with one digit, else three digits, differences with two."""
    sign = "+z" if signed else "z"  # z: what rounds to zero is not negative
    text = f"{100 * value:{sign}.1f}" if is_share else f"{value:{sign}.{2 if signed else 3}g}"
    return text.replace("-", "−")
