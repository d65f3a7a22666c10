"""What the paper says in words about its numbers, and whether ours say the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import TypeVar

from fedfomo.reproduce.catalogue import (
    AUTHORS_OPTIONS,
    DOWNLOADS,
    EPSILONS,
    FEDAVG,
    FINE_TUNED,
    FOMO_5,
    FOMO_10,
    LATENT_5,
    LOCAL,
    LOCAL_BEST,
    PAPERS,
    TABLES,
    downloading,
    exploring,
    splitting,
)
from fedfomo.reproduce.cells import Case, Cell, Variant
from fedfomo.reproduce.paper import published
from fedfomo.reproduce.results import Results

N = TypeVar("N", int, float)
FOMO = (FOMO_5, FOMO_10)
RIVALS = tuple(variant for variant in PAPERS if variant not in FOMO)


EVEN = 1.0  # leads below this say nothing
CHANCE = 3.0  # nor do these, of a single seed: means move by more than a point from one round to the next


def is_open(lead: float, seeds: int) -> bool:
    """Tell whether a lead may well be chance."""
    return abs(lead) < (CHANCE if seeds == 1 else EVEN)


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the best of some variants on a case."""

    case: Case
    variants: tuple[Variant, ...]


@dataclass(frozen=True)
class Pair:
    """Two sides, of which the first is said to be ahead."""

    where: str
    ahead: Side
    behind: Side
    papers_lead: float | None = None  # in points of accuracy, by the paper's own numbers


@dataclass(frozen=True)
class Claim:
    """The first side of every pair is said to be ahead of the second."""

    words: str
    pairs: tuple[Pair, ...]


@dataclass(frozen=True)
class Finding:
    """What our numbers say about one pair of a claim."""

    pair: Pair
    lead: float  # of the first side, in points of accuracy
    seeds: int


def findings(claim: Claim, scale: str, results: Results) -> list[Finding]:
    """Compare where both sides are computed in full, on the seeds that all variants of both have."""
    found: list[Finding] = []
    for pair in claim.pairs:
        runs = [
            [results.all_seeds(Cell(side.case, variant, scale)) for variant in side.variants]
            for side in (pair.ahead, pair.behind)
        ]
        seeds = sorted(set.intersection(*(set(by_seed) for side in runs for by_seed in side)))
        if seeds:
            # The best on average over seeds, not the best of each seed, which would favour the longer list.
            best = [max(fmean(by_seed[seed].mean() for seed in seeds) for by_seed in side) for side in runs]
            found.append(Finding(pair, best[0] - best[1], len(seeds)))
    return found


def _in_table(name: str, ahead: Sequence[Variant], behind: Sequence[Variant], where: str = "") -> tuple[Pair, ...]:
    """Compare in every column of a table; where says what columns of several tables would not."""
    return tuple(
        Pair(
            f"{column.heading}, {where}" if where else column.heading,
            Side(column.case, tuple(ahead)),
            Side(column.case, tuple(behind)),
            _papers_lead(name, column.case, [row.name for row in ahead], [row.name for row in behind]),
        )
        for column in TABLES[name].columns
    )


def _private() -> tuple[Pair, ...]:
    return tuple(
        Pair(
            f"{column.heading}, σ = {noise:g}",
            Side(replace(column.case, noise=noise), (FOMO_5,)),
            Side(replace(column.case, noise=0.0), (FEDAVG,)),
            _papers_lead("table4", column.case, [f"{FOMO_5.name}-noise-{noise:g}"], [f"{FEDAVG.name}-noise-0"]),
        )
        for column in TABLES["table4"].columns
        for noise in (1.0, 2.0)
    )


def _papers_lead(table: str, case: Case, ahead: Sequence[str], behind: Sequence[str]) -> float | None:
    """Return by how much the best of some rows is ahead of the best of others in the paper's own table."""
    numbers = [[published(table, row, case) for row in side] for side in (ahead, behind)]
    best = [max((number.mean for number in side if number is not None), default=None) for side in numbers]
    return None if best[0] is None or best[1] is None else best[0] - best[1]


def _more_of(symbol: str, chosen: Callable[[N], Variant], values: Sequence[N]) -> tuple[Pair, ...]:
    """Compare each value of an option with the next smaller one."""
    return tuple(
        Pair(f"{symbol} = {more:g} against {less:g}", Side(LATENT_5, (chosen(more),)), Side(LATENT_5, (chosen(less),)))
        for less, more in pairwise(values)
    )


CLAIMS = (
    Claim(
        "Latent distributions, CIFAR-10: FedFomo is ahead of Local Training, or competitive where D is largest",
        _in_table("table2", FOMO, (LOCAL,)),
    ),
    Claim("Latent distributions, CIFAR-10: FedFomo is ahead of FedAvg", _in_table("table2", FOMO, (FEDAVG,))),
    Claim(
        "Latent distributions, CIFAR-10: FedFomo is ahead of every rival, or competitive",
        _in_table("table2", FOMO, RIVALS),
    ),
    Claim(
        "Latent distributions, CIFAR-100: FedFomo is ahead of every rival where D is large, and otherwise competitive",
        _in_table("table5", FOMO, RIVALS),
    ),
    Claim("Pathological split: FedFomo is ahead of Local Training", _in_table("table1", FOMO, (LOCAL,))),
    Claim("Pathological split: FedFomo is ahead of FedAvg", _in_table("table1", FOMO, (FEDAVG,))),
    Claim(
        "Pathological split: FedFomo is ahead of every rival with 100 clients, and competitive with 15",
        _in_table("table1", FOMO, RIVALS),
    ),
    Claim("Foreign targets: FedFomo is ahead of Local Training", _in_table("table3", FOMO, (LOCAL,))),
    Claim("Foreign targets: FedFomo is ahead of FedAvg", _in_table("table3", FOMO, (FEDAVG,))),
    Claim("Foreign targets: FedFomo is ahead of every rival", _in_table("table3", FOMO, RIVALS)),
    Claim("Private FedFomo is ahead of FedAvg without noise", _private()),
    Claim("More downloads are better", _more_of("M", downloading, DOWNLOADS[1:])),
    Claim("ε makes no consistent difference (here: a larger one is ahead)", _more_of("ε", exploring, EPSILONS)),
    Claim(
        "Less than half of the data for validation is better than more",
        tuple(
            Pair(f"{less:g} against {more:g}", Side(splitting(less), (FOMO_5,)), Side(splitting(more), (FOMO_5,)))
            for less, more in ((0.2, 0.6), (0.4, 0.6), (0.4, 0.8), (0.4, 0.9))
        ),
    ),
    Claim("(Not in the paper) n = 10 is ahead of n = 5, whatever D", _in_table("table2", (FOMO_10,), (FOMO_5,))),
    Claim(
        "(Not in the paper) FedFomo is ahead of Local Training that keeps its best round",
        (
            *_in_table("table2", FOMO, (LOCAL_BEST,)),
            *_in_table("table3", FOMO, (LOCAL_BEST,), "foreign targets"),
        ),
    ),
    Claim("(Not in the paper) FedFomo is ahead of FedAvg with fine-tuning", _in_table("table2", FOMO, (FINE_TUNED,))),
    Claim(
        "(Not in the paper) options of the authors' code are ahead of the paper's own",
        tuple(
            Pair(variant.label, Side(LATENT_5, (variant,)), Side(LATENT_5, AUTHORS_OPTIONS[:1]))
            for variant in AUTHORS_OPTIONS[1:]
        ),
    ),
)
