"""Tables of what a change of FedFomo+ costs or brings: differences in accuracy on common seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from experiments.fedfomo_plus.search import REGIMES
from experiments.fedfomo_plus.variants import SHIPPED
from experiments.iclr2021.paired import lead
from experiments.markdown import MISSING, NOTHING, signed, table

MAIN = (
    *("one start for all", "γ = 1", "own agreement: 1", "ε-greedy choice of models", "no others' models"),
    *("no history", "no mixture: the start is used", "no mixture: the best candidate", "no bound on lengths"),
)
"""Variants of the short table: one for each part of the method."""
FEWER = "*"
"""Marks a difference over fewer seeds than its column has."""

BySeed = Mapping[int, float]
"""Accuracies in %."""


def differences(lines: Sequence[Mapping[str, Any]], names: Sequence[str], to: str = SHIPPED) -> str:
    """Return by how much every variant differs from one of them, by regime."""
    found = by_variant(lines, "variant")
    if to not in found:
        return NOTHING
    regimes = [regime for regime in REGIMES if regime in found[to]]
    rows = [[f"{to}, accuracy in %", *(f"{fmean(found[to][regime].values()):.1f}" for regime in regimes)]]
    for name in names:
        if name in found and name != to:
            entries = [difference(found[name].get(regime, {}), found[to][regime]) for regime in regimes]
            if any(entry != MISSING for entry in entries):
                rows.append([name, *entries])
    seeds = ["seeds", *(str(len(found[to][regime])) for regime in regimes)]
    return table(("variant", *regimes), [*rows, seeds])


def by_variant(lines: Sequence[Mapping[str, Any]], key: str) -> dict[str, dict[str, dict[int, float]]]:
    """Sort accuracies of runs on features by variant, regime and seed."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for line in lines:
        if "regime" in line:
            found.setdefault(line[key], {}).setdefault(line["regime"], {})[line["seed"]] = line["accuracy"]
    return found


def difference(one: BySeed, other: BySeed) -> str:
    """Return the mean difference in points over common seeds, marked if these are fewer than the other's."""
    over = lead({n: [v / 100] for n, v in one.items()}, {n: [v / 100] for n, v in other.items()})
    if over is None:
        return MISSING
    return signed(over.mean) + (FEWER if len(over.values) < len(other) else "")
