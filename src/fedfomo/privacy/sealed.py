"""Private records: examples that nobody can look at but whoever pays.

A client under differential privacy holds sealed examples. An algorithm can count them, cut them and pass them on to
training and judgement; it cannot read them. Whatever would leave the client without noise therefore fails, loudly,
instead of leaving.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedfomo.errors import InputError
from fedfomo.examples import ClientData, Examples
from fedfomo.privacy.accounting import Bill, Look, Records, added
from fedfomo.privacy.noise import Noise


class BudgetError(Exception):
    """A client has nothing left to pay for another look at its records."""


@dataclass
class Meter:
    """One client's account during one round: the noise it draws, and what it has to pay."""

    noise: Noise
    before: Bill  # of earlier rounds
    affords: Callable[[Bill], bool]  # whether a bill stays within the client's budget
    bill: dict[Look, int] = field(default_factory=dict[Look, int])  # of this round

    def pay(self, look: Look, times: int = 1) -> None:
        """Put looks on the bill before they are taken."""
        bill = added(self.bill, {look: times})
        if not self.affords(added(self.before, bill)):
            raise BudgetError
        self.bill = bill


class Sealed(Examples):
    """Examples of one client that are read only through `opened`, by what adds noise and pays for it."""

    records: tuple[Records, ...]  # whose bill it is
    meter: Meter
    chance: float  # at which each record of the client came to be among these
    expected: float  # how many records were expected; how many there are is nobody's business
    _examples: Examples

    def __init__(
        self,
        examples: Examples,
        records: tuple[Records, ...],
        meter: Meter,
        chance: float = 1.0,
        expected: float | None = None,
    ) -> None:
        given = {"records": records, "meter": meter, "chance": chance, "_examples": examples}
        given["expected"] = float(len(examples)) if expected is None else expected
        for name, value in given.items():
            object.__setattr__(self, name, value)  # examples are frozen

    def opened(self) -> Examples:
        """Return what is inside; for trainers and judges only."""
        return self._examples

    def pay(self, noise: float, times: int = 1) -> None:
        """Pay for noisy looks at these examples."""
        for records in self.records:
            self.meter.pay(Look(records, noise, self.chance), times)

    def sampled(self, chance: float, rng: torch.Generator) -> Sealed:
        """Take every example with the same chance, each by a draw of its own."""
        chosen = (torch.rand(len(self), generator=rng, dtype=torch.float64) < chance).nonzero().flatten()
        expected = chance * len(self)
        return Sealed(self._examples.take(chosen), self.records, self.meter, chance * self.chance, expected)

    def __len__(self) -> int:
        return len(self._examples)

    def take(self, indices: Tensor) -> Sealed:
        """Return some of the examples, still sealed."""
        return Sealed(self._examples.take(indices), self.records, self.meter, self.chance)

    def to(self, device: torch.device) -> Sealed:
        """Return the examples on a device, still sealed."""
        return Sealed(self._examples.to(device), self.records, self.meter, self.chance)

    def batches(self, size: int) -> Iterator[Sealed]:
        """Cut the examples into batches, still sealed."""
        for batch in self._examples.batches(size):
            yield Sealed(batch, self.records, self.meter, self.chance)

    def joined(self, *others: Examples) -> Sealed:
        """Return these examples and others behind them; what is joined to private records is as private as they are."""
        records = set(self.records).union(*(other.records for other in others if isinstance(other, Sealed)))
        inside = [other.opened() if isinstance(other, Sealed) else other for other in others]
        return Sealed(self._examples.joined(*inside), tuple(sorted(records)), self.meter)

    @property
    def inputs(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refuse."""
        raise _refusal("inputs")

    @property
    def labels(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Refuse."""
        raise _refusal("labels")


def sealed(data: ClientData, meter: Meter) -> ClientData:
    """Seal a client's own data; its test examples are a simulation's yardstick, and nobody learns from them."""
    return ClientData(
        Sealed(data.train, ("training",), meter), Sealed(data.validation, ("validation",), meter), data.test
    )


def _refusal(what: str) -> InputError:
    return InputError(
        f"this method reads the {what} of private examples itself, past the noise: it cannot run with privacy;"
        " choose another method, or leave out --privacy"
    )
