"""How methods stand on images, with the authors' CNN, from finished cells of the table of regimes."""

from __future__ import annotations

from statistics import fmean

from experiments.iclr2021.paper_tables import TABLES, Column
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import Cell
from experiments.iclr2021.standings import FEDFOMO, FEWEST_SEEDS, Standing
from fedfomo.datasets.scenario_summary import INFORMATIVE


def cnn_standings(results: Results, scale: str = "lite") -> list[Standing]:
    """Return every regime in which FedFomo and some rival have two seeds.

    Methods are compared by their last reading: with a fifth of the data, only every fourth round is scored.
    """
    found = [_standing(column, results, scale) for column in TABLES["regimes"].columns]
    return [one for one in found if one.seeds() >= FEWEST_SEEDS and one.leads(FEDFOMO)]


def _standing(column: Column, results: Results, scale: str) -> Standing:
    rows = {row.variant.name: row.variant for row in TABLES["regimes"].rows}
    runs = {name: results.all_seeds(Cell(column.case, variant, scale)) for name, variant in rows.items()}
    constants = {seed: run.content["constant"] for by_seed in runs.values() for seed, run in by_seed.items()}
    informative = [sum(one is not None and one < INFORMATIVE for one in clients) for clients in constants.values()]
    scores = {
        name: {seed: run.content["after_update"]["accuracy"] for seed, run in by_seed.items()}
        for name, by_seed in runs.items()
        if by_seed
    }
    return Standing(
        column.case.name,
        column.heading,
        column.case.clients,
        fmean(informative) if informative else 0.0,
        {name: variant.label for name, variant in rows.items()},
        scores=scores,
        last=scores,
    )
