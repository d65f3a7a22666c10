"""The table for whoever reads no other: where FedFomo wins, where it does not, and what the paper says of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from statistics import fmean

from fedfomo.reproduce.catalogue import BEYOND, CONTROLS, FEDAVG, FOMO_5, LOCAL, ORACLE, PAPERS, TABLES, Variant
from fedfomo.reproduce.cells import SHOWN, Case, Cell
from fedfomo.reproduce.claims import FOMO, is_open
from fedfomo.reproduce.paper import published
from fedfomo.reproduce.results import Result, Results, signed

Runs = Mapping[Variant, Mapping[int, Result]]
"""Results by variant and seed."""
OTHERS = tuple(variant for variant in (*PAPERS, *BEYOND, *CONTROLS) if variant not in (*FOMO, ORACLE))
"""Whom FedFomo is measured against: whoever does not know the truth beforehand."""
NEEDED = (FOMO_5, LOCAL, FEDAVG)
"""Without these, there is nothing to say about a case."""
WHERE = {
    "table1": "{}, two classes a client",
    "table2": "CIFAR-10, latent distributions, {}",
    "table3": "{}, targets of other clients",
    "table5": "CIFAR-100, latent distributions, {}",
}
SCALE_WORDS = {"paper": "all", "lite": "a fifth"}


@dataclass(frozen=True)
class Closest:
    """Whoever leaves FedFomo the smallest lead, its own mean, that lead, and on how many seeds."""

    rival: Variant
    mean: float
    lead: float
    seeds: int

    def described(self, seeds: int) -> str:
        """Name it with its mean, and with its seeds if they are fewer than all."""
        fewer = f" on {self.seeds} of the seeds" if self.seeds < seeds else ""
        return f"{self.rival.label} {self.mean:.1f}{fewer}"


def headline(results: Results) -> str:
    """Return one line for every case of the paper's tables, at the largest scale at which it is computed."""
    lines: list[str] = []
    for name, words in WHERE.items():
        for column in TABLES[name].columns:
            for scale in SHOWN:
                runs = {variant: results.all_seeds(Cell(column.case, variant, scale)) for variant in (FOMO_5, *OTHERS)}
                seeds = set[int].intersection(*(set(runs[variant]) for variant in NEEDED))
                if seeds:
                    how = f"{SCALE_WORDS[scale]}, {len(seeds)}"
                    lines.append(_line(words.format(column.heading), how, name, column.case, runs, seeds))
                    break
    if not lines:
        return "Nothing has been computed yet."
    head = (
        "| setting | data, seeds | FedFomo | Local Training | FedAvg | best of the others | FedFomo is ahead of it by"
        " | mixed clients only |"
    )
    return "\n".join([head, "| --- | --- | ---: | ---: | ---: | --- | ---: | --- |", *lines])


def _line(where: str, how: str, table: str, case: Case, runs: Runs, seeds: Set[int]) -> str:
    papers = _papers(table, case, runs)
    ours = {variant: fmean(runs[variant][seed].mean() for seed in seeds) for variant in NEEDED}
    beside = [f"{ours[variant]:.1f} ({papers[variant]:.1f})" for variant in NEEDED]
    best = _closest(runs, seeds, Result.mean)
    its_best = max((variant for variant in OTHERS if variant in papers), key=papers.__getitem__)
    of = sum(bool(runs[variant].keys() & seeds) for variant in OTHERS)
    rival = f"{best.described(len(seeds))}, of {of} ({its_best.label} {papers[its_best]:.1f})"
    its_lead = papers[FOMO_5] - papers[its_best]
    mixed = _closest(runs, seeds, lambda run: run.mean_of_mixed)
    among = "none of them is" if math.isnan(mixed.lead) else f"{signed(mixed.lead)}: {mixed.described(len(seeds))}"
    ours_is = signed(best.lead) if is_open(best.lead, best.seeds) else f"**{signed(best.lead)}**"
    lead = f"{ours_is} ({signed(its_lead)})"
    return f"| {' | '.join((where, how, *beside, rival, lead, among))} |"


def _closest(runs: Runs, seeds: Set[int], figure: Callable[[Result], float]) -> Closest:
    """Find the best of the others, each compared on the seeds that it shares with FedFomo; without figures, NaN."""
    found: list[Closest] = []
    for rival in OTHERS:
        pairs = [(figure(runs[rival][seed]), figure(runs[FOMO_5][seed])) for seed in runs[rival].keys() & seeds]
        known = [pair for pair in pairs if not math.isnan(sum(pair))]
        if known:
            theirs, fomos = (fmean(values) for values in zip(*known, strict=True))
            found.append(Closest(rival, theirs, fomos - theirs, len(known)))
    return min(found, key=lambda one: one.lead, default=Closest(LOCAL, math.nan, math.nan, 0))


def _papers(table: str, case: Case, runs: Runs) -> dict[Variant, float]:
    """Return the paper's numbers of those that are computed here as well: a lead over others says something else."""
    found = {variant: published(table, variant.name, case) for variant, seeds in runs.items() if seeds}
    return {variant: number.mean for variant, number in found.items() if number is not None}
