"""How methods stand in a regime, on features or on images: scores, paired leads, and what they come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from experiments.iclr2021.paired import Lead, Outcome, Verdict, close_behind, lead, outcome, verdicts

FEDFOMO, PLUS = "fedfomo-5", "fedfomo-plus"
OWN = (FEDFOMO, PLUS, "fedfomo-10", "fedfomo-all")
REFERENCE = "oracle"
"""Knows what no method could; shown, and not a rival."""
FEWEST_SEEDS = 2
"""Of both methods, for a lead to be shown."""

Scores = Mapping[str, Mapping[int, Sequence[float | None]]]
"""Accuracies from 0 to 1, by method, seed and client; a client that was never scored has none."""


@dataclass(frozen=True)
class Standing:
    """One regime, with the scores of all methods that are computed."""

    regime: str
    label: str
    clients: int
    informative: float  # clients whom a constant answer does not serve within two points of everything
    labels: Mapping[str, str] = field(repr=False)  # of methods
    scores: Scores = field(repr=False)  # by these methods are compared
    last: Scores = field(repr=False)  # the last reading

    def has(self, method: str) -> bool:
        """Tell whether a method has a score."""
        return bool(self.scores.get(method))

    @property
    def rivals(self) -> list[str]:
        """Whom FedFomo and FedFomo+ are measured against, FedFomo itself left out."""
        return [name for name in self.scores if name not in (*OWN, REFERENCE)]

    def means(self, method: str, last: bool = False) -> list[float]:
        """Return a method's mean accuracy in % over clients for each seed."""
        by_seed = (self.last if last else self.scores)[method].values()
        return [100 * fmean(value for value in clients if value is not None) for clients in by_seed]

    def mean(self, method: str) -> float:
        """Return a method's mean accuracy in % over clients and seeds."""
        return fmean(self.means(method))

    def seeds(self, method: str = FEDFOMO) -> int:
        """Return how many seeds a method has."""
        return len(self.scores.get(method, {}))

    def leads(self, method: str) -> dict[str, Lead]:
        """Return a method's leads over its rivals, on common seeds; FedFomo+ has FedFomo for a rival as well."""
        rivals = self.rivals if method == FEDFOMO else [FEDFOMO, *self.rivals]
        mine = self.scores.get(method, {})
        found = {rival: lead(mine, self.scores.get(rival, {})) for rival in rivals}
        return {rival: one for rival, one in found.items() if one and len(one.values) >= FEWEST_SEEDS}

    def verdicts(self, method: str) -> dict[str, Verdict]:
        """Say how a method stands against each rival, corrected for their number."""
        return verdicts(self.leads(method))

    def outcome(self, method: str) -> Outcome:
        """Say what that comes to."""
        return outcome(self.verdicts(method))

    def close_behind(self, method: str) -> dict[str, Lead]:
        """Return its leads over rivals that are ahead of it by less than the margin of "even", and not by chance."""
        return close_behind(self.leads(method))

    def by_last_reading(self) -> Standing:
        """Return the same regime, with methods compared by their last reading alone."""
        return replace(self, scores=self.last)

    def best_rival(self, method: str) -> str:
        """Return the rival over whom a method's lead is least, each on the seeds that both have."""
        leads = self.leads(method)
        return min(leads, key=lambda rival: leads[rival].mean)

    def least_lead(self, method: str) -> Lead:
        """Return a method's lead over its best rival."""
        return self.leads(method)[self.best_rival(method)]

    def rival(self, method: str) -> str:
        """Name the best rival, with its mean accuracy on the seeds that both have."""
        best = self.best_rival(method)
        common = self.scores[method].keys() & self.scores[best].keys()
        values = [mean for seed, mean in zip(self.scores[best], self.means(best), strict=True) if seed in common]
        return f"{self.labels[best]} {fmean(values):.1f}"
