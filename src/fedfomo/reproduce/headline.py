"""The table for whoever reads no other: where FedFomo wins, where it does not, and what the paper says of it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from fedfomo.reproduce.catalogue import BEYOND, CONTROLS, FEDAVG, FOMO_5, LOCAL, ORACLE, PAPERS, TABLES, Variant
from fedfomo.reproduce.cells import SHOWN, Case, Cell
from fedfomo.reproduce.claims import FOMO
from fedfomo.reproduce.paper import published
from fedfomo.reproduce.results import Results

Means = Mapping[Variant, float]
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


def headline(results: Results) -> str:
    """Return one line for every case of the paper's tables, at the largest scale at which it is computed."""
    lines: list[str] = []
    for name, words in WHERE.items():
        for column in TABLES[name].columns:
            for scale in SHOWN:
                seeds, ours = _means(column.case, scale, results)
                if all(variant in ours for variant in NEEDED):
                    how = f"{SCALE_WORDS[scale]}, {seeds}"
                    lines.append(_line(words.format(column.heading), how, ours, _papers(name, column.case, ours)))
                    break
    if not lines:
        return "Nothing has been computed yet."
    head = (
        "| setting | data, seeds | FedFomo | Local Training | FedAvg | best of the others | FedFomo is ahead of it by |"
    )
    return "\n".join([head, "| --- | --- | ---: | ---: | ---: | --- | ---: |", *lines])


def _line(where: str, how: str, ours: Means, papers: Means) -> str:
    beside = [f"{ours[variant]:.1f} ({papers[variant]:.1f})" for variant in NEEDED]
    best, its_best = _best(ours), _best(papers)
    of = len(ours.keys() & set(OTHERS))
    rival = f"{best.label} {ours[best]:.1f}, of {of} ({its_best.label} {papers[its_best]:.1f})"
    lead, its_lead = (
        f"{means[FOMO_5] - means[other]:+.1f}".replace("-", "−") for means, other in ((ours, best), (papers, its_best))
    )
    return f"| {where} | {how} | {' | '.join(beside)} | {rival} | **{lead}** ({its_lead}) |"


def _best(means: Means) -> Variant:
    return max((variant for variant in OTHERS if variant in means), key=means.__getitem__)


def _means(case: Case, scale: str, results: Results) -> tuple[int, dict[Variant, float]]:
    """Return the mean accuracies of all variants that are computed, over the seeds that all of them have."""
    found = {variant: results.all_seeds(Cell(case, variant, scale)) for variant in (FOMO_5, *OTHERS)}
    known = {variant: runs for variant, runs in found.items() if runs}
    seeds = set[int].intersection(*map(set, known.values())) if known else set[int]()
    means = {variant: fmean(runs[seed].mean() for seed in seeds) for variant, runs in known.items() if seeds}
    return len(seeds), means


def _papers(table: str, case: Case, ours: Means) -> dict[Variant, float]:
    """Return the paper's numbers of those that are computed here as well: a lead over others says something else."""
    found = {variant: published(table, variant.name, case) for variant in ours}
    return {variant: number.mean for variant, number in found.items() if number is not None}
