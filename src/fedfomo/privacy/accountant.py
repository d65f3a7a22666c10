"""The ledger: which noisy queries were made on whose records, and what they add up to.

Queries on training and on validation records are added up apart: no record is both, so the guarantee for either kind
is its own sum, and the headline is the larger one.

Opacus takes as long to import as torch, so only a ledger that is added up imports it.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np

from fedfomo.core.determinism import one_blas_thread
from fedfomo.errors import InputError
from fedfomo.privacy.config import Privacy

Records = Literal["training", "validation"]

# Opacus' own orders end at 63, where large noise is far from its best.
ORDERS = (*(1 + tenth / 10 for tenth in range(1, 100)), *range(12, 64), 64, 96, 128, 256, 512, 1024)


# Points of numerical composition that take some 5 seconds; ten times as many take minutes and gigabytes.
LARGEST_GRID = 4_000_000


@dataclass(frozen=True)
class Query:
    """One kind of noisy query on records."""

    records: Records
    noise: float  # standard deviation, in units of what one record can change
    chance: float  # of any one record to be looked at


Ledger = Mapping[Query, int]
"""How often each kind of query was made."""


@dataclass(frozen=True)
class EpsilonSpent:
    """What a client has spent; infinite where there is no guarantee."""

    training: float
    validation: float

    @property
    def headline(self) -> float:
        """The guarantee that holds for every record of the client."""
        return max(self.training, self.validation)


def added(ledger: Ledger, more: Ledger, times: int = 1) -> dict[Query, int]:
    """Return one ledger on top of another."""
    return {query: ledger.get(query, 0) + times * more.get(query, 0) for query in {**ledger, **more}}


def epsilon_of(ledger: Ledger, records: Records, delta: float, accountant: str = "rdp") -> float:
    """Return ε of one kind of record at δ, for all queries together."""
    queries = tuple(
        (query.noise, query.chance, times) for query, times in ledger.items() if query.records == records and times > 0
    )
    if not queries:
        return 0.0
    if any(noise == 0 for noise, _, _ in queries):
        return math.inf
    return _ACCOUNTANTS[accountant](tuple(sorted(queries)), delta)


def spent(ledger: Ledger, delta: float, accountant: str = "rdp") -> EpsilonSpent:
    """Return ε of both kinds of record."""
    return EpsilonSpent(
        epsilon_of(ledger, "training", delta, accountant), epsilon_of(ledger, "validation", delta, accountant)
    )


def calibrate_noise(epsilon: Callable[[float], float], target: float) -> float:
    """Return the noise, to a thousandth, at which a falling ε meets its target; never one that misses it."""
    high = 1.0
    while epsilon(high) > target:
        high *= 2
        if high > 1e6:
            raise InputError(f"no noise reaches privacy.epsilon {target}: allow more, or train for fewer rounds")
    low = 0.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle) > target else (low, middle)
    return high


def to_rows(ledger: Ledger) -> list[list[Any]]:
    """Spell a ledger out in plain values."""
    return sorted([query.records, query.noise, query.chance, times] for query, times in ledger.items())


def from_rows(rows: list[list[Any]]) -> dict[Query, int]:
    """Read a ledger."""
    return {Query(records, noise, chance): times for records, noise, chance, times in rows}


@cache
def _rdp(queries: tuple[tuple[float, float, int], ...], delta: float) -> float:
    total = np.sum([_renyi_of_one(noise, chance) * times for noise, chance, times in queries], axis=0)
    # As in Opacus' conversion (Balle et al., 2020), but for its warning when the best order is the last.
    orders = np.asarray(ORDERS, dtype=np.float64)
    epsilons = total - (math.log(delta) + np.log(orders)) / (orders - 1) + np.log1p(-1 / orders)
    return max(0.0, float(np.nan_to_num(epsilons, nan=math.inf).min()))


@cache
def _renyi_of_one(noise: float, chance: float) -> Any:
    from opacus.accountants.analysis import rdp as renyi

    orders = list(ORDERS)
    return np.asarray(renyi.compute_rdp(q=chance, noise_multiplier=noise, steps=1, orders=orders), dtype=np.float64)


@cache
def _prv(queries: tuple[tuple[float, float, int], ...], delta: float) -> float:
    if _prv_grid(queries, delta) > LARGEST_GRID:
        _say_once("numerical composition (prv) would take too long for so large an ε: rdp is used, which is higher")
        return _rdp(queries, delta)
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = list(queries)
    # At a chance of 1 it takes the logarithm of 0, rightly; far out, its exponentials exceed all numbers.
    with one_blas_thread(), np.errstate(divide="ignore", over="ignore"), warnings.catch_warnings():
        # Its first guess at a range may be a wide one.
        warnings.filterwarnings("ignore", "Optimal order is the largest alpha")
        warnings.filterwarnings("ignore", "overflow encountered", RuntimeWarning)
        return float(accountant.get_epsilon(delta))


def _prv_grid(queries: tuple[tuple[float, float, int], ...], delta: float) -> float:
    """Return about how many points Opacus composes on, by its defaults: errors of 0.01 in ε and δ/1000 in δ."""
    error = delta / 1000
    step = 0.01 / math.sqrt(sum(times for *_, times in queries) * math.log(12 / error) / 2)
    return 2 * (_rdp(queries, error / 4) + 3) / step


@cache
def _say_once(words: str) -> None:
    logging.getLogger(__name__).warning(words)


_ACCOUNTANTS: dict[str, Callable[[tuple[tuple[float, float, int], ...], float], float]] = {"rdp": _rdp, "prv": _prv}


def describe_privacy(spent: Mapping[int, EpsilonSpent], privacy: Privacy) -> list[str]:
    """Say what is guaranteed, and what is not; the client that spent most decides."""
    training = max(one.training for one in spent.values())
    validation = max(one.validation for one in spent.values())
    sentences = [
        f"training records: {_guarantee(training)}; validation records: {_guarantee(validation)};"
        f" every record: {_guarantee(max(training, validation))} (the client that spent most, δ = {privacy.delta:g})"
    ]
    if privacy.noise == 0:
        sentences.append("gradients were clipped, and no noise was added: that protects nobody")
    if privacy.mode == "research":
        sentences.append("research mode: the noise follows from the seed, so whoever knows that has no noise to face")
    return sentences


def _guarantee(epsilon: float) -> str:
    return f"ε = {epsilon:.2f}" if math.isfinite(epsilon) else "no guarantee"
