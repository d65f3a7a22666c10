"""How methods stand on features, from finished cells."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from experiments.iclr2021.features.cells import CONTENDERS, REGIMES, SEEDS, FeatureCell, Regime
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.standings import FEDFOMO, FEWEST_SEEDS, Standing

Lines = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Finished cells by method and seed."""


def standings(store: Store) -> list[Standing]:
    """Return every regime in which FedFomo and some rival have two seeds."""
    found = [_standing(regime, lines) for regime in REGIMES.values() if (lines := _lines(regime, store)).get(FEDFOMO)]
    return [one for one in found if one.seeds() >= FEWEST_SEEDS and one.leads(FEDFOMO)]


def _lines(regime: Regime, store: Store) -> Lines:
    lines: dict[str, dict[int, Mapping[str, Any]]] = {}
    for name, contender in CONTENDERS.items():
        if store.is_tuned(contender) and contender.fits(regime):
            known = {seed: store.get(FeatureCell(regime, contender, seed)) for seed in range(SEEDS)}
            if any(known.values()):
                lines[name] = {seed: line for seed, line in known.items() if line is not None}
    return lines


def _standing(regime: Regime, lines: Lines) -> Standing:
    """Compare by the mean of the last five readings, or by the last one where cohorts change from round to round."""
    cells = [line for by_seed in lines.values() for line in by_seed.values()]
    point = "last" if any(line["last_five"] is None for line in cells) else "last_five"
    informative = {seed: line["informative"] for by_seed in lines.values() for seed, line in by_seed.items()}
    return Standing(
        regime.name,
        regime.label,
        regime.clients,
        fmean(informative.values()),
        {name: CONTENDERS[name].label for name in lines},
        scores={name: {seed: line[point] for seed, line in by_seed.items()} for name, by_seed in lines.items()},
        last={name: {seed: line["last"] for seed, line in by_seed.items()} for name, by_seed in lines.items()},
    )
