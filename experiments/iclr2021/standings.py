"""How methods stand in a regime on features: scores, paired leads, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from experiments.iclr2021.features.cells import CONTENDERS, REGIMES, SEEDS, FeatureCell, Regime
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.paired import Lead, Outcome, Verdict, lead, outcome, verdicts

FEDFOMO, PLUS = "fedfomo-5", "fedfomo-plus"
OWN = (FEDFOMO, PLUS, "fedfomo-10", "fedfomo-all")
REFERENCE = ("oracle",)
"""Knows what no method could; shown, and not a rival."""
RIVALS = tuple(name for name in CONTENDERS if name not in (*OWN, *REFERENCE))
FEWEST_SEEDS = 2
"""Of both methods, for a lead to be shown."""


@dataclass(frozen=True)
class Standing:
    """A regime with the lines of its finished cells, by method and seed."""

    regime: Regime
    lines: Mapping[str, Mapping[int, Mapping[str, Any]]]

    @property
    def is_last_reading(self) -> bool:
        """Whether scores are of the last reading alone, since others are of other clients."""
        return any(line["last_five"] is None for lines in self.lines.values() for line in lines.values())

    def by_client(self, name: str, last: bool = False) -> dict[int, Sequence[float | None]]:
        """Return a method's accuracies by seed and client: means of the last five readings, or the last one."""
        point = "last" if last or self.is_last_reading else "last_five"
        return {seed: line[point] for seed, line in self.lines.get(name, {}).items()}

    def means(self, name: str, last: bool = False) -> list[float]:
        """Return a method's mean accuracy in % for each seed."""
        return [
            100 * fmean(value for value in clients if value is not None)
            for clients in self.by_client(name, last).values()
        ]

    def mean(self, name: str) -> float:
        """Return a method's mean accuracy in % over clients and seeds."""
        return fmean(self.means(name))

    def leads(self, name: str) -> dict[str, Lead]:
        """Return a method's leads over its rivals, on common seeds; FedFomo+ has FedFomo for a rival as well."""
        mine = self.by_client(name)
        rivals = RIVALS if name == FEDFOMO else (FEDFOMO, *RIVALS)
        found = {rival: lead(mine, self.by_client(rival)) for rival in rivals}
        return {rival: one for rival, one in found.items() if one and len(one.values) >= FEWEST_SEEDS}

    def verdicts(self, name: str) -> dict[str, Verdict]:
        """Say how a method stands against each rival, corrected for their number."""
        return verdicts(self.leads(name))

    def outcome(self, name: str) -> Outcome:
        """Say what that comes to."""
        return outcome(self.verdicts(name))

    @property
    def seeds(self) -> int:
        """How many seeds FedFomo has."""
        return len(self.lines.get(FEDFOMO, {}))

    @cached_property
    def informative(self) -> float:
        """How many clients a constant answer does not serve within two points of everything; the mean over seeds."""
        numbers = {seed: line["informative"] for lines in self.lines.values() for seed, line in lines.items()}
        return fmean(numbers.values())

    def best_rival(self, name: str) -> str:
        """Return the rival over whom a method's lead is least, each on the seeds that both have."""
        leads = self.leads(name)
        return min(leads, key=lambda rival: leads[rival].mean)

    def rival(self, name: str) -> str:
        """Name that rival, with its mean accuracy on these seeds."""
        best = self.best_rival(name)
        common = self.by_client(name).keys() & self.by_client(best).keys()
        values = [mean for seed, mean in zip(self.by_client(best), self.means(best), strict=True) if seed in common]
        return f"{CONTENDERS[best].label} {fmean(values):.1f}"


def standings(store: Store) -> list[Standing]:
    """Return every regime in which FedFomo and some rival have two seeds."""
    found: list[Standing] = []
    for regime in REGIMES.values():
        lines: dict[str, dict[int, Mapping[str, Any]]] = {}
        for name, contender in CONTENDERS.items():
            if not (store.is_tuned(contender) and contender.fits(regime)):
                continue
            known = {seed: store.get(FeatureCell(regime, contender, seed)) for seed in range(SEEDS)}
            lines[name] = {seed: line for seed, line in known.items() if line is not None}
        standing = Standing(regime, lines)
        if standing.seeds >= FEWEST_SEEDS and standing.leads(FEDFOMO):
            found.append(standing)
    return found
