"""What the paper says in words about its numbers, what one would like to know beside it, and what our numbers say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Literal, TypeVar

from experiments.iclr2021.paper_tables import (
    AUTHORS_OPTIONS,
    DOWNLOADS,
    EPSILONS,
    FEDAVG,
    FINE_TUNED,
    FOMO_5,
    FOMO_10,
    KEPT,
    LATENT_2,
    LATENT_5,
    LOCAL,
    LOCAL_BEST,
    MANY_CLIENT_SETTINGS,
    NUMBERS,
    PAPER_METHODS,
    TABLES,
    downloading,
    exploring,
    splitting,
)
from experiments.iclr2021.results import Difference, Results
from experiments.iclr2021.settings import MANY_CLIENTS, Cell, MethodConfig, Setting, published

N = TypeVar("N", int, float)
FOMO = (FOMO_5, FOMO_10)
RIVALS = tuple(variant for variant in PAPER_METHODS if variant not in FOMO)
LARGE = 5
"""From this number of latent distributions on, it is large."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the best of some variants on a case."""

    case: Setting
    variants: tuple[MethodConfig, ...]


@dataclass(frozen=True)
class Pair:
    """Two sides, and what is said of the first: that it is ahead, competitive, or no different."""

    where: str
    first: Side
    second: Side
    papers_lead: float | None = None  # of the first, in points of accuracy, by the paper's own numbers
    said: Literal["ahead", "competitive", "even"] = "ahead"


@dataclass(frozen=True)
class Claim:
    """What is said of every pair."""

    words: str
    pairs: tuple[Pair, ...]


def _never(case: Setting) -> bool:
    return False


def _small(case: Setting) -> bool:
    return case.clients < MANY_CLIENTS


def _in_table(
    name: str,
    first: Sequence[MethodConfig],
    second: Sequence[MethodConfig],
    where: str = "",
    is_competitive: Callable[[Setting], bool] = _never,
) -> tuple[Pair, ...]:
    """Compare in every column of a table; where says what columns of several tables would not."""
    return tuple(
        Pair(
            f"{column.heading}, {where}" if where else column.heading,
            Side(column.case, tuple(first)),
            Side(column.case, tuple(second)),
            _papers_lead(name, column.case, [row.name for row in first], [row.name for row in second]),
            "competitive" if is_competitive(column.case) else "ahead",
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


def _papers_lead(table: str, case: Setting, first: Sequence[str], second: Sequence[str]) -> float | None:
    """Return by how much the best of some rows is ahead of the best of others in the paper's own table."""
    numbers = [[published(table, row, case) for row in side] for side in (first, second)]
    best = [max((number.mean for number in side if number is not None), default=None) for side in numbers]
    return None if best[0] is None or best[1] is None else best[0] - best[1]


def _more_of(
    symbol: str, chosen: Callable[[N], MethodConfig], values: Sequence[N], said: Literal["ahead", "even"] = "ahead"
) -> tuple[Pair, ...]:
    """Compare each value of an option with the next smaller one."""
    return tuple(
        Pair(
            f"{symbol} = {more:g} against {less:g}",
            Side(LATENT_5, (chosen(more),)),
            Side(LATENT_5, (chosen(less),)),
            said=said,
        )
        for less, more in pairwise(values)
    )


CLAIMS = (
    Claim(
        "Latent distributions, CIFAR-10: FedFomo is ahead of Local Training, or competitive where D is largest",
        _in_table("table2", FOMO, (LOCAL,), is_competitive=lambda case: case.distributions == NUMBERS[-1]),
    ),
    Claim("Latent distributions, CIFAR-10: FedFomo is ahead of FedAvg", _in_table("table2", FOMO, (FEDAVG,))),
    Claim(
        "Latent distributions, CIFAR-10: FedFomo is ahead of every rival, or competitive",
        _in_table("table2", FOMO, RIVALS, is_competitive=lambda case: True),
    ),
    Claim(
        "Latent distributions, CIFAR-100: FedFomo is ahead of every rival where D is large, and otherwise competitive",
        _in_table("table5", FOMO, RIVALS, is_competitive=lambda case: (case.distributions or 0) < LARGE),
    ),
    Claim(
        "Pathological split: FedFomo is ahead of Local Training with 100 clients, and competitive with 15",
        _in_table("table1", FOMO, (LOCAL,), is_competitive=_small),
    ),
    Claim("Pathological split: FedFomo is ahead of FedAvg", _in_table("table1", FOMO, (FEDAVG,))),
    Claim(
        "Pathological split: FedFomo is ahead of every rival with 100 clients, and competitive with 15",
        _in_table("table1", FOMO, RIVALS, is_competitive=_small),
    ),
    Claim("Foreign targets: FedFomo is ahead of Local Training", _in_table("table3", FOMO, (LOCAL,))),
    Claim("Foreign targets: FedFomo is ahead of FedAvg", _in_table("table3", FOMO, (FEDAVG,))),
    Claim("Foreign targets: FedFomo is ahead of every rival", _in_table("table3", FOMO, RIVALS)),
    Claim("Private FedFomo is ahead of FedAvg without noise", _private()),
    Claim("More downloads are better", _more_of("M", downloading, DOWNLOADS[1:])),
    Claim("ε makes no consistent difference", _more_of("ε", exploring, EPSILONS, "even")),
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
    Claim(
        "(Not in the paper) Pathological split, 100 clients: FedFomo is ahead of Local Training of all in every round",
        tuple(
            Pair(label, Side(case, FOMO), Side(replace(case, participation=1.0), (LOCAL,)))
            for label, case in MANY_CLIENT_SETTINGS.items()
        ),
    ),
    Claim("(Not in the paper) FedFomo is ahead of FedAvg with fine-tuning", _in_table("table2", FOMO, (FINE_TUNED,))),
    Claim(
        "(Not in the paper) options of the authors' code are ahead of the paper's own",
        tuple(
            Pair(f"D = {case.distributions}, {variant.label}", Side(case, (variant,)), Side(case, AUTHORS_OPTIONS[:1]))
            for case in (LATENT_2, LATENT_5)
            for variant in AUTHORS_OPTIONS[1:]
        ),
    ),
    Claim(
        "(Not in the paper) FedFomo that keeps its training where nobody helps is ahead of the paper's own",
        tuple(
            Pair(f"D = {case.distributions}", Side(case, (KEPT,)), Side(case, (FOMO_5,)))
            for case in (LATENT_2, LATENT_5)
        ),
    ),
)


COMPETITIVE = 5.0
"""Points of accuracy that a side may be behind and be called competitive: the paper says so of 4.4."""
VERDICTS = ("yes", "so far", "even", "open", "no")
"""What can be said of a claim; so far: of those rivals that are computed; even: neither side is ahead."""


@dataclass(frozen=True)
class Finding:
    """What our numbers say about one pair of a claim."""

    pair: Pair
    lead: Difference  # of the first side
    own: int  # variants of the first side that are computed
    rivals: int  # variants of the second side that are computed

    @property
    def is_complete(self) -> bool:
        """Whether all of the second side is computed."""
        return self.rivals == len(self.pair.second.variants)

    @property
    def verdict(self) -> str:
        """One of the verdicts."""
        bar = -COMPETITIVE if self.pair.said == "competitive" else 0.0
        if self.pair.said != "competitive" and self.lead.is_even:
            return "even"
        if self.lead.is_open(bar):
            return "open"
        if self.pair.said != "even" and self.lead.mean > bar:
            return "yes" if self.is_complete else "so far"
        # What is behind with some variants may be ahead with one that is not computed yet.
        return "no" if self.own == len(self.pair.first.variants) else "open"


def findings(claim: Claim, scale: str, results: Results) -> list[Finding]:
    """Compare what is computed of both sides, on the seeds that all of it has."""
    found: list[Finding] = []
    for pair in claim.pairs:
        sides = [
            [runs for variant in side.variants if (runs := results.all_seeds(Cell(side.case, variant, scale)))]
            for side in (pair.first, pair.second)
        ]
        if not all(sides):
            continue
        seeds = sorted(set[int].intersection(*(set(runs) for side in sides for runs in side)))
        if seeds:
            means = [[[runs[seed].mean() for seed in seeds] for runs in side] for side in sides]
            # The best on average over seeds, not the best of each seed, which would favour the longer list.
            first, second = (max(side, key=fmean) for side in means)
            lead = Difference(tuple(one - other for one, other in zip(first, second, strict=True)))
            found.append(Finding(pair, lead, *map(len, sides)))
    return found
