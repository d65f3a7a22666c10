"""What our numbers say about claims."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from experiments.iclr2021.cells import Cell
from experiments.iclr2021.claims import Claim, Pair
from experiments.iclr2021.leads import Lead
from experiments.iclr2021.results import Results

COMPETITIVE = 5.0
"""Points of accuracy that a side may be behind and be called competitive: the paper says so of 4.4."""
VERDICTS = ("yes", "so far", "even", "open", "no")
"""What can be said of a claim; so far: of those rivals that are computed; even: neither side is ahead."""


@dataclass(frozen=True)
class Finding:
    """What our numbers say about one pair of a claim."""

    pair: Pair
    lead: Lead  # of the first side
    own: int  # variants of the first side that are computed
    rivals: int  # variants of the second side that are computed

    @property
    def is_complete(self) -> bool:
        """Whether all of the second side is computed."""
        return self.rivals == len(self.pair.second.variants)

    @property
    def verdict(self) -> str:
        """One of the verdicts."""
        bar = -COMPETITIVE if self.pair.said == "competitive" else 0.0
        if self.pair.said != "competitive" and self.lead.is_even:
            return "even"
        if self.lead.is_open(bar):
            return "open"
        if self.pair.said != "even" and self.lead.mean > bar:
            return "yes" if self.is_complete else "so far"
        # What is behind with some variants may be ahead with one that is not computed yet.
        return "no" if self.own == len(self.pair.first.variants) else "open"


def findings(claim: Claim, scale: str, results: Results) -> list[Finding]:
    """Compare what is computed of both sides, on the seeds that all of it has."""
    found: list[Finding] = []
    for pair in claim.pairs:
        sides = [
            [runs for variant in side.variants if (runs := results.all_seeds(Cell(side.case, variant, scale)))]
            for side in (pair.first, pair.second)
        ]
        if not all(sides):
            continue
        seeds = sorted(set[int].intersection(*(set(runs) for side in sides for runs in side)))
        if seeds:
            means = [[[runs[seed].mean() for seed in seeds] for runs in side] for side in sides]
            # The best on average over seeds, not the best of each seed, which would favour the longer list.
            first, second = (max(side, key=fmean) for side in means)
            lead = Lead(tuple(one - other for one, other in zip(first, second, strict=True)))
            found.append(Finding(pair, lead, *map(len, sides)))
    return found
