"""The table for whoever reads no other: where FedFomo wins, where it does not, and what the paper says of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from statistics import fmean

from fedfomo.reproduce.catalogue import BEYOND, CONTROLS, FEDAVG, FOMO_5, LOCAL, ORACLE, PAPERS, TABLES, Variant
from fedfomo.reproduce.cells import AMOUNTS, SHOWN, Case, Cell
from fedfomo.reproduce.claims import FOMO, RIVALS
from fedfomo.reproduce.leads import Lead
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
    "table3": "{}, targets shuffled among clients",
    "table5": "CIFAR-100, latent distributions, {}",
}


@dataclass(frozen=True)
class Compared:
    """One of the others: its mean, FedFomo's on the same seeds, and FedFomo's lead."""

    rival: Variant
    mean: float
    fomos: float
    lead: Lead

    def described(self, seeds: int) -> str:
        """Name it with its mean, and with FedFomo's beside it if it has fewer than all seeds."""
        fewer = len(self.lead.values)
        beside = f" on {fewer} of the seeds, with {self.fomos:.1f} of FedFomo" if fewer < seeds else ""
        return f"{self.rival.label} {self.mean:.1f}{beside}"


def headline(results: Results) -> str:
    """Return a line for every case of the paper's tables, at the largest scale at which it is computed.

    Where some of the paper's rivals are missing there, the next scale has a line as well.
    """
    lines: list[str] = []
    for name, words in WHERE.items():
        for column in TABLES[name].columns:
            for scale in SHOWN:
                runs = {variant: results.all_seeds(Cell(column.case, variant, scale)) for variant in (FOMO_5, *OTHERS)}
                seeds = set[int].intersection(*(set(runs[variant]) for variant in NEEDED))
                if seeds:
                    how = f"{AMOUNTS[scale]}, {len(seeds)}"
                    papers = _papers(name, column.case) if scale == "paper" else None
                    lines.append(_line(words.format(column.heading), how, papers, runs, seeds))
                    if set(RIVALS) <= _computed(runs, seeds):
                        break
    if not lines:
        return "Nothing has been computed yet."
    head = (
        "| setting | data, seeds | FedFomo | Local Training | FedAvg | best of the others | FedFomo is ahead of it by"
        " | mixed clients only |"
    )
    return "\n".join([head, "| --- | --- | ---: | ---: | ---: | --- | ---: | --- |", *lines])


def _line(where: str, how: str, papers: Mapping[Variant, float] | None, runs: Runs, seeds: Set[int]) -> str:
    """Return a line, with the paper's numbers in brackets where the experiment is the paper's."""
    entries = [f"{fmean(runs[variant][seed].mean() for seed in seeds):.1f}" for variant in NEEDED]
    best = min(_compared(runs, seeds, Result.mean), key=lambda one: one.lead.mean)
    computed = _computed(runs, seeds)
    rival = f"{best.described(len(seeds))}, of {len(computed)}"
    # A lead over fewer than the paper's rivals is not yet one over its best.
    is_decided = best.lead.is_clear and set(RIVALS) <= computed
    entries += [rival, _marked(best.lead, is_decided)]
    if papers is not None:
        its_best = max(RIVALS, key=papers.__getitem__)
        theirs = [f"{papers[variant]:.1f}" for variant in NEEDED]
        theirs += [f"{its_best.label} {papers[its_best]:.1f}", signed(papers[FOMO_5] - papers[its_best])]
        entries = [f"{entry} ({their})" for entry, their in zip(entries, theirs, strict=True)]
    return f"| {' | '.join((where, how, *entries, _among_mixed(runs, seeds)))} |"


def _computed(runs: Runs, seeds: Set[int]) -> set[Variant]:
    """Return which of the others are there to compare with."""
    return {variant for variant in OTHERS if runs[variant].keys() & seeds}


def _among_mixed(runs: Runs, seeds: Set[int]) -> str:
    """Return FedFomo's smallest lead where one constant answer does not do."""
    found = _compared(runs, seeds, lambda run: run.mean_of_mixed)
    if not found:
        return "none of them is"
    closest = min(found, key=lambda one: one.lead.mean)
    number = fmean(len(runs[FOMO_5][seed].mixed) for seed in seeds)
    clients = f"{number:.3g} client{'' if number == 1 else 's'}"
    # Behind one rival is behind; ahead of all is known only once the paper's are all computed. One seed of a few
    # clients decides nothing.
    is_final = closest.lead.mean < 0 or set(RIVALS) <= {one.rival for one in found}
    is_decided = closest.lead.is_clear and is_final and len(closest.lead.values) > 1
    return f"{_marked(closest.lead, is_decided)}: {closest.described(len(seeds))}, {clients}"


def _marked(lead: Lead, is_decided: bool) -> str:
    return f"**{signed(lead.mean)}**" if is_decided else signed(lead.mean)


def _compared(runs: Runs, seeds: Set[int], figure: Callable[[Result], float]) -> list[Compared]:
    """Compare FedFomo with each of the others, on the seeds that the two share and that have the figure."""
    found: list[Compared] = []
    for rival in OTHERS:
        pairs = [(figure(runs[FOMO_5][seed]), figure(runs[rival][seed])) for seed in runs[rival].keys() & seeds]
        known = [pair for pair in pairs if not math.isnan(sum(pair))]
        if known:
            fomos, theirs = (fmean(values) for values in zip(*known, strict=True))
            found.append(Compared(rival, theirs, fomos, Lead(tuple(one - other for one, other in known))))
    return found


def _papers(table: str, case: Case) -> dict[Variant, float]:
    """Return the paper's numbers."""
    found = {variant: published(table, variant.name, case) for variant in PAPERS}
    return {variant: number.mean for variant, number in found.items() if number is not None}
