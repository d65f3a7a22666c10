"""FedFomo beside the best of the others, in every setting of the paper's tables that is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from experiments.iclr2021.claims import FOMO, RIVALS
from experiments.iclr2021.paper_tables import (
    CONTROL_METHODS,
    EXTRA_METHODS,
    FEDAVG,
    FOMO_5,
    LOCAL,
    ORACLE,
    PAPER_METHODS,
    TABLES,
    MethodConfig,
)
from experiments.iclr2021.results import Difference, Result, Results
from experiments.iclr2021.settings import DATA_WORDS, SHOWN, Cell, Setting, published
from experiments.markdown import NOTHING, signed

Runs = Mapping[MethodConfig, Mapping[int, Result]]
"""Results by variant and seed."""
OTHERS = tuple(
    variant for variant in (*PAPER_METHODS, *EXTRA_METHODS, *CONTROL_METHODS) if variant not in (*FOMO, ORACLE)
)
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
class Comparison:
    """One of the others: its mean, FedFomo's on the same seeds, and FedFomo's lead."""

    rival: MethodConfig
    mean: float
    fomos: float
    lead: Difference

    def described(self, seeds: int) -> str:
        """Name it with its mean, and with FedFomo's beside it if it has fewer than all seeds."""
        fewer = len(self.lead.values)
        beside = f" on {fewer} of the seeds, with {self.fomos:.1f} of FedFomo" if fewer < seeds else ""
        return f"{self.rival.label} {self.mean:.1f}{beside}"


@dataclass(frozen=True)
class Ranking:
    """How FedFomo stands in a case of the paper's tables at a scale, beside some of the others on common seeds."""

    where: str
    scale: str
    runs: Runs
    seeds: frozenset[int]
    papers: Mapping[MethodConfig, float]

    @property
    def computed(self) -> set[MethodConfig]:
        """Which of the others are there to compare with."""
        return {variant for variant in OTHERS if self.runs[variant].keys() & self.seeds}

    @property
    def has_papers_rivals(self) -> bool:
        """Whether the paper's rivals are all there."""
        return set(RIVALS) <= self.computed

    def mean(self, variant: MethodConfig) -> float:
        """Return the mean accuracy in % over seeds."""
        return fmean(self.runs[variant][seed].mean() for seed in self.seeds)

    @cached_property
    def best(self) -> Comparison:
        """The best of the others: whoever FedFomo is least ahead of."""
        return min(self._compared(Result.mean), key=lambda one: one.lead.mean)

    @cached_property
    def among_mixed(self) -> list[Comparison]:
        """All of the others, where one constant answer does not do."""
        return self._compared(lambda run: run.mean_of_mixed)

    @cached_property
    def best_among_mixed(self) -> Comparison | None:
        """The best of the others there; none, if no client is mixed."""
        return min(self.among_mixed, key=lambda one: one.lead.mean, default=None)

    @property
    def is_decided(self) -> bool:
        """Whether it is known who is ahead: by several seeds, and over all of the paper's rivals."""
        return self.best.lead.is_clear and self.has_papers_rivals and len(self.seeds) > 1

    @property
    def papers_best(self) -> MethodConfig:
        """The best of the others by the paper's numbers."""
        return max(RIVALS, key=self.papers.__getitem__)

    @property
    def papers_lead(self) -> float:
        """FedFomo's lead over it."""
        return self.papers[FOMO_5] - self.papers[self.papers_best]

    def _compared(self, figure: Callable[[Result], float]) -> list[Comparison]:
        """Compare FedFomo with each of the others, on the seeds that the two share and that have the figure."""
        found: list[Comparison] = []
        for rival in OTHERS:
            common = self.runs[rival].keys() & self.seeds
            pairs = [(figure(self.runs[FOMO_5][seed]), figure(self.runs[rival][seed])) for seed in common]
            known = [pair for pair in pairs if not math.isnan(sum(pair))]
            if known:
                fomos, theirs = (fmean(values) for values in zip(*known, strict=True))
                found.append(Comparison(rival, theirs, fomos, Difference(tuple(one - other for one, other in known))))
        return found


def rankings(results: Results) -> list[Ranking]:
    """Return every case of the paper's tables, at the largest scale at which it is computed.

    Where some of the paper's rivals are missing there, it is there at the next scale as well.
    """
    found: list[Ranking] = []
    for name, words in WHERE.items():
        for column in TABLES[name].columns:
            for scale in SHOWN:
                runs = {variant: results.all_seeds(Cell(column.case, variant, scale)) for variant in (FOMO_5, *OTHERS)}
                seeds = frozenset[int].intersection(*(frozenset(runs[variant]) for variant in NEEDED))
                if seeds:
                    papers = _papers(name, column.case)
                    found.append(Ranking(words.format(column.heading), scale, runs, seeds, papers))
                    if found[-1].has_papers_rivals:
                        break
    return found


def comparison(results: Results) -> str:
    """Return a table of all settings that are computed."""
    found = rankings(results)
    if not found:
        return NOTHING
    head = (
        "| setting | data, seeds | FedFomo | Local Training | FedAvg | best of the others | FedFomo is ahead of it by"
        " | mixed clients only |"
    )
    return "\n".join([head, "| --- | --- | ---: | ---: | ---: | --- | ---: | --- |", *map(_line, found)])


def _line(standing: Ranking) -> str:
    """Return a line, with the paper's numbers in brackets where the experiment is the paper's."""
    seeds, best, papers = len(standing.seeds), standing.best, standing.papers
    entries = [f"{standing.mean(variant):.1f}" for variant in NEEDED]
    entries += [f"{best.described(seeds)}, of {len(standing.computed)}", _marked(best.lead, standing.is_decided)]
    if standing.scale == "paper":
        its_best = standing.papers_best
        theirs = [f"{papers[variant]:.1f}" for variant in NEEDED]
        theirs += [f"{its_best.label} {papers[its_best]:.1f}", signed(standing.papers_lead)]
        entries = [f"{entry} ({their})" for entry, their in zip(entries, theirs, strict=True)]
    data = f"{DATA_WORDS[standing.scale]}, {seeds}"
    return f"| {' | '.join((standing.where, data, *entries, _among_mixed(standing)))} |"


def _among_mixed(standing: Ranking) -> str:
    """Return FedFomo's smallest lead where one constant answer does not do."""
    best = standing.best_among_mixed
    if best is None:
        return "none of them is"
    number = fmean(len(standing.runs[FOMO_5][seed].mixed) for seed in standing.seeds)
    clients = f"{number:.3g} client{'' if number == 1 else 's'}"
    # Behind one rival is behind; ahead of all is known only once the paper's are all computed. One seed of a few
    # clients decides nothing.
    is_final = best.lead.mean < 0 or set(RIVALS) <= {one.rival for one in standing.among_mixed}
    is_decided = best.lead.is_clear and is_final and len(best.lead.values) > 1
    return f"{_marked(best.lead, is_decided)}: {best.described(len(standing.seeds))}, {clients}"


def _marked(lead: Difference, is_decided: bool) -> str:
    return f"**{signed(lead.mean)}**" if is_decided else signed(lead.mean)


def _papers(table: str, case: Setting) -> dict[MethodConfig, float]:
    """Return the paper's numbers."""
    found = {variant: published(table, variant.name, case) for variant in PAPER_METHODS}
    return {variant: number.mean for variant, number in found.items() if number is not None}
