"""Methods × scenarios: what each client gained by one method over another, never the mean alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from fedfomo.report.data import compact
from fedfomo.report.intervals import Estimate, of_mean_gap
from fedfomo.runs.metrics import percentile

ClientKey = tuple[int, int]
"""A seed, and a client of that seed: the same key is the same client under every method."""


@dataclass(frozen=True)
class PairwiseComparison:
    """One method against another on the same clients."""

    method: str
    against: str
    gaps: list[float]  # of every client of every seed that both have scores of
    mean: Estimate
    worst: float
    tenth_percentile: float
    better: int
    equal: int
    worse: int


@dataclass(frozen=True)
class ScenarioComparison:
    """One scenario, with every method that was played on it."""

    title: str
    seeds: list[int]
    means: dict[str, float]
    num_seeds: dict[str, int]  # behind each mean
    duels: list[PairwiseComparison]


def compare_methods(title: str, scores: Mapping[str, Mapping[ClientKey, float]]) -> ScenarioComparison:
    """Set every method against every other."""
    known = {
        method: {key: value for key, value in values.items() if math.isfinite(value)}
        for method, values in scores.items()
    }
    duels = [
        duel
        for method in known
        for against in known
        if method != against and (duel := _duel(method, against, known[method], known[against]))
    ]
    means = {method: fmean(values.values()) for method, values in known.items() if values}
    seeds = {method: {seed for seed, _ in values} for method, values in known.items()}
    num_seeds = {method: len(seeds[method]) for method in means}
    return ScenarioComparison(title, sorted(set[int]().union(*seeds.values())), means, num_seeds, duels)


def _duel(
    method: str, against: str, ours: Mapping[ClientKey, float], theirs: Mapping[ClientKey, float]
) -> PairwiseComparison | None:
    gaps = [ours[key] - theirs[key] for key in sorted(ours) if key in theirs]
    if not gaps:
        return None
    better, worse = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    low = percentile(sorted(gaps), 0.1)
    return PairwiseComparison(
        method, against, gaps, of_mean_gap(gaps), min(gaps), low, better, len(gaps) - better - worse, worse
    )


def comparison_facts(arenas: list[ScenarioComparison]) -> dict[str, object]:
    """Return what the page of a comparison shows."""
    return {
        "arenas": [
            {
                "title": arena.title,
                "seeds": arena.seeds,
                "means": compact(arena.means),
                "num_seeds": arena.num_seeds,
                "duels": [
                    {
                        "method": duel.method,
                        "against": duel.against,
                        "gaps": compact(duel.gaps),
                        "mean": compact({"value": duel.mean.value, "low": duel.mean.low, "high": duel.mean.high}),
                        "worst": compact(duel.worst),
                        "tenth_percentile": compact(duel.tenth_percentile),
                        "better": duel.better,
                        "equal": duel.equal,
                        "worse": duel.worse,
                    }
                    for duel in arena.duels
                ],
            }
            for arena in arenas
        ],
        "metric": "accuracy",
        "is_share": True,
        "method": "",
        "clients": [],
        "methods": [],
    }
