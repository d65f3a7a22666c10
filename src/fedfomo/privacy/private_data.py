"""Private records: examples that are read only by queries that are charged to a budget.

A client under differential privacy holds private examples. An algorithm can count them, cut them and pass them on to
training and evaluation; it cannot read them. A method that would send something without noise therefore fails.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedfomo.core.client import BudgetError
from fedfomo.core.data import ClientData, Examples, UnreadableExamples
from fedfomo.errors import InputError
from fedfomo.privacy.accountant import Ledger, Query, Records, added


class Noise(Protocol):
    """A source of independent draws from the standard normal distribution."""

    def draw(self, size: int) -> Tensor:
        """Return that many draws, in float64."""
        ...


class SeededNoise:
    """Noise that can be drawn again by whoever has the seed: for research, not for a guarantee."""

    def __init__(self, rng: torch.Generator) -> None:
        self._rng = rng

    def draw(self, size: int) -> Tensor:
        """Return that many draws, in float64."""
        return torch.randn(size, generator=self._rng, dtype=torch.float64)


class SystemNoise:
    """Noise made of the operating system's entropy alone, which nobody can draw again."""

    def draw(self, size: int) -> Tensor:
        """Return that many draws, in float64."""
        bits = np.frombuffer(os.urandom(8 * size), dtype=np.uint64) >> np.uint64(12)
        return torch.special.ndtri(torch.from_numpy((bits.astype(np.float64) + 0.5) * 2.0**-52))  # never 0, never 1


@dataclass
class BudgetTracker:
    """One client's account during one round: the noise it draws, and the ledger it charges."""

    noise: Noise
    before: Ledger  # of earlier rounds
    affords: Callable[[Ledger], bool]  # whether a ledger stays within the client's budget
    attempts: int = 1  # how often this round has to be paid
    ledger: dict[Query, int] = field(default_factory=dict[Query, int])  # of this round, once
    _reserved: dict[Query, int] = field(default_factory=dict[Query, int])  # found affordable, and not yet taken
    _uses: dict[tuple[bytes, Records], int] = field(default_factory=dict[tuple[bytes, Records], int])

    def reserve(self, query: Query, times: int) -> None:
        """Refuse queries that the budget does not cover, before the first of them is made."""
        self._reserved[query] = times
        self._afford(self.ledger)

    def charge(self, query: Query, times: int = 1) -> None:
        """Charge queries to the ledger before they are made."""
        ledger = added(self.ledger, {query: times})
        if times <= self._reserved.get(query, 0):
            self._reserved[query] -= times
        else:
            self._afford(ledger)
        self.ledger = ledger

    def charge_sample(self, query: Query, sample: bytes) -> None:
        """Charge a query on a random sample to the ledger.

        Chance protects a record once: k queries on one sample are one query on it with the noise of their mean, σ/√k.
        """
        uses = self._uses.get((sample, query.records), 0)
        self._uses[sample, query.records] = uses + 1
        if uses == 0:
            self.charge(query)
            return
        if self._reserved.get(query):
            self._reserved[query] -= 1
        so_far = replace(query, noise=query.noise / math.sqrt(uses))
        ledger = added(self.ledger, {so_far: -1})
        ledger = added(ledger, {replace(query, noise=query.noise / math.sqrt(uses + 1)): 1})
        self._afford(ledger)
        self.ledger = {kind: times for kind, times in ledger.items() if times}

    def _afford(self, ledger: Ledger) -> None:
        """Refuse a ledger that exceeds the budget with all that was reserved."""
        if not self.affords(added(self.before, added(ledger, self._reserved), self.attempts)):
            raise BudgetError


class PrivateExamples(UnreadableExamples):
    """Examples of one client that are read only by trainers and evaluators that add noise and charge the ledger."""

    records: tuple[Records, ...]  # whose ledger it is
    tracker: BudgetTracker
    chance: float  # at which each record of the client came to be among these
    sample: bytes | None  # names the draw that made a random sample; None: these are no sample
    is_local: bool  # whether nothing that comes of their gradients ever leaves the client: these need no noise
    _expected: float
    _examples: Examples

    def __init__(
        self,
        examples: Examples,
        records: tuple[Records, ...],
        tracker: BudgetTracker,
        chance: float = 1.0,
        expected: float | None = None,
        sample: bytes | None = None,
        is_local: bool = False,
    ) -> None:
        given: dict[str, Any] = {"records": records, "tracker": tracker, "chance": chance, "sample": sample}
        given |= {"is_local": is_local, "_examples": examples}
        given["_expected"] = float(len(examples)) if expected is None else expected
        for name, value in given.items():
            object.__setattr__(self, name, value)  # examples are frozen

    @property
    def expected(self) -> float:
        """How many records were expected; of a random sample, the true number is private."""
        return self._expected

    @property
    def is_lazy(self) -> bool:
        """Whether they are read batch by batch."""
        return self._examples.is_lazy

    def opened(self) -> Examples:
        """Return the examples themselves; for trainers and evaluators only."""
        return self._examples

    def reserve(self, noise: float, chance: float, times: int) -> None:
        """Refuse noisy queries on samples of these examples that the budget does not cover."""
        for records in self.records:
            self.tracker.reserve(Query(records, noise, chance * self.chance), times)

    def charge(self, noise: float, times: int = 1) -> None:
        """Charge noisy queries on these examples."""
        for records in self.records:
            query = Query(records, noise, self.chance)
            if self.sample is None:
                self.tracker.charge(query, times)
            else:
                for _ in range(times):
                    self.tracker.charge_sample(query, self.sample)

    def sampled(self, chance: float, rng: torch.Generator) -> PrivateExamples:
        """Take every example with the same chance, each by a draw of its own."""
        self.refuse_sample()
        name = hashlib.blake2b(rng.get_state().numpy().tobytes(), digest_size=16).digest()
        chosen = (torch.rand(len(self), generator=rng, dtype=torch.float64) < chance).nonzero().flatten()
        return PrivateExamples(
            self._examples.seeded(rng).take(chosen), self.records, self.tracker, chance, chance * len(self), name
        )

    def __len__(self) -> int:
        return len(self._examples)

    def take(self, indices: Tensor) -> PrivateExamples:
        """Return some of the examples, still private."""
        self.refuse_sample()
        return PrivateExamples(self._examples.take(indices), self.records, self.tracker)

    def augmented(self, rng: torch.Generator) -> PrivateExamples:
        """Return the images shifted and mirrored, still private: each comes of one record, as before."""
        return self._with(self._examples.augmented(rng))

    def to(self, device: torch.device) -> PrivateExamples:
        """Return the examples on a device, still private."""
        return self._with(self._examples.to(device))

    def for_local_use(self) -> PrivateExamples:
        """Return the examples for gradients of which nothing ever leaves the client."""
        return self._with(self._examples, is_local=True)

    def holding(self, batch: Examples) -> PrivateExamples:
        """Return some of these examples, which a trainer has taken for local use, as private as these are."""
        return PrivateExamples(batch, self.records, self.tracker, is_local=self.is_local)

    def _with(self, examples: Examples, is_local: bool | None = None) -> PrivateExamples:
        is_local = self.is_local if is_local is None else is_local
        return PrivateExamples(examples, self.records, self.tracker, self.chance, self._expected, self.sample, is_local)

    def batches(self, size: int) -> Iterator[PrivateExamples]:
        """Cut the examples into batches, still private."""
        self.refuse_sample()
        for batch in self._examples.batches(size):
            yield PrivateExamples(batch, self.records, self.tracker)

    def joined(self, *others: Examples) -> PrivateExamples:
        """Return these examples and others behind them; what is joined to private records is as private as they are."""
        self.refuse_sample()
        records = set(self.records).union(*(other.records for other in others if isinstance(other, PrivateExamples)))
        inside = [other.opened() if isinstance(other, PrivateExamples) else other for other in others]
        return PrivateExamples(self._examples.joined(*inside), tuple(sorted(records)), self.tracker)

    def refuse_sample(self) -> None:
        """Refuse whatever else than a gradient is asked of a random sample."""
        if self.sample is not None:
            raise InputError(
                "this method cuts, joins or evaluates a random sample of private examples, which the privacy accountant"
                " does not support: choose another method, or leave out --privacy"
            )

    def refusal(self, what: str) -> InputError:
        """Say that private examples are read by queries alone."""
        return InputError(
            f"this method reads the {what} of private examples itself, past the noise: it cannot run with privacy;"
            " choose another method, or leave out --privacy"
        )


def make_private(data: ClientData, tracker: BudgetTracker) -> ClientData:
    """Make a client's training and validation examples private; test examples only score a simulation."""
    return ClientData(
        PrivateExamples(data.train, ("training",), tracker),
        PrivateExamples(data.validation, ("validation",), tracker),
        data.test,
    )
