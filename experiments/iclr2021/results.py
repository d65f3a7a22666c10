"""What is kept of a finished cell, one small JSON file, and by how much one method is ahead of another."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from experiments.iclr2021.settings import Cell
from fedfomo.errors import reading

Point = Literal["after_update", "after_training"]
MIXED = 0.9
"""A client is mixed if a constant answer is right in a smaller share of its test data."""


@dataclass(frozen=True)
class Result:
    """A finished cell."""

    content: dict[str, Any]

    def accuracies(self, point: Point = "after_update") -> list[float]:
        """Return the accuracies of all clients that have test data."""
        return [value for value in self.content[point]["accuracy"] if value is not None]

    def mean(self, point: Point = "after_update") -> float:
        """Return the mean accuracy over clients in %; every client counts alike."""
        known = self.accuracies(point)
        return 100 * fmean(known) if known else math.nan

    @property
    def constant(self) -> float:
        """The mean accuracy in % of answering every client with the most frequent label of data like its target."""
        known = [value for value in self.content["constant"] if value is not None]
        return 100 * fmean(known) if known else math.nan

    @property
    def mixed(self) -> list[float]:
        """The accuracies after the last update of clients whom one constant answer does not satisfy."""
        pairs = zip(self.content["after_update"]["accuracy"], self.content["constant"], strict=True)
        return [value for value, constant in pairs if value is not None and constant is not None and constant < MIXED]

    @property
    def mean_of_mixed(self) -> float:
        """The mean accuracy in %, after the last update, over clients whom one constant answer does not satisfy."""
        return 100 * fmean(self.mixed) if self.mixed else math.nan

    @property
    def num_ood_clients(self) -> int:
        """How many clients aim at another distribution than the one that they train on."""
        groups = self.content["groups"]
        return sum(groups[client] != groups[target] for client, target in enumerate(self.content["targets"]))

    def curve(self, point: Point = "after_update") -> list[float | None]:
        """Return the mean accuracy of each round's cohort."""
        return self.content["curves"][point]

    @property
    def epsilons(self) -> list[float]:
        """Every client's ε of its training records; none where one is infinite, or nothing was private."""
        spent = [one["training"] for one in (self.content.get("spent") or {}).values()]
        return [] if None in spent else spent

    @property
    def refusals(self) -> int:
        """How many models were refused, as they are when a training diverges to what is no number."""
        return sum((self.content.get("refusals") or {}).values())

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.content["seconds"]


@dataclass(frozen=True)
class Accuracy:
    """A mean accuracy in %, once for each seed."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation over seeds, as far as a sample tells; 0 of a single one."""
        return stdev(self.values) if len(self.values) > 1 else 0.0

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + (f" ± {self.spread:.2f}" if len(self.values) > 1 else "")


class Results:
    """The folder of finished cells."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, Result] = {}

    def has(self, cell: Cell) -> bool:
        """Tell whether a cell is finished."""
        return (self.folder / cell.file).exists()

    def get(self, cell: Cell) -> Result | None:
        """Return a cell's result if it is finished."""
        return self._load(self.folder / cell.file) if self.has(cell) else None

    def all_seeds(self, cell: Cell) -> dict[int, Result]:
        """Return the results of a cell with whatever seeds there are."""
        folder = (self.folder / cell.file).parent
        seeds = sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob(f"{cell.variant.name}-seed-*.json"))
        found = {seed: self.get(Cell(cell.case, cell.variant, cell.scale, seed)) for seed in seeds}
        return {seed: result for seed, result in found.items() if result is not None}

    def accuracy(self, cell: Cell, point: Point = "after_update") -> Accuracy | None:
        """Return a cell's mean accuracy in % over all seeds that are finished."""
        values = [result.mean(point) for result in self.all_seeds(cell).values()]
        return Accuracy(tuple(values)) if values else None

    def curve(self, cell: Cell) -> list[tuple[float, float | None]]:
        """Return a cell's mean accuracy in % after each federated update, over all seeds that are finished."""
        runs = list(self.all_seeds(cell).values())
        # In round 0 there was no update, and after the last round there was one more.
        curves = [[*run.curve()[1:], run.mean() / 100] for run in runs]
        points = zip(*curves, strict=True)
        return [
            (float(number), None if None in values else 100 * fmean(value for value in values if value is not None))
            for number, values in enumerate(points, 1)
        ]

    def _load(self, path: Path) -> Result:
        name = str(path.relative_to(self.folder).with_suffix(""))
        if name not in self._read:
            with reading(path, "delete it, and it is computed again"):
                self._read[name] = Result(json.loads(path.read_bytes()))
        return self._read[name]


EVEN = 1.0
"""Points of accuracy: a lead below this is none."""
CHANCE = 5.0
"""Points by which a single seed may deceive: means of one method have moved by as much from one round to the next."""
CONFIDENCE = 0.95
"""Of the interval around a mean over several seeds."""


@dataclass(frozen=True)
class Difference:
    """A lead in points of accuracy, once for each seed that both sides have."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return fmean(self.values)

    @property
    def margin(self) -> float:
        """How far the mean may be off: Student's interval over seeds, or what a single seed may deceive by."""
        number = len(self.values)
        if number == 1:
            return CHANCE
        from scipy.stats import t  # takes a while to import

        return float(t.ppf((1 + CONFIDENCE) / 2, number - 1)) * stdev(self.values) / math.sqrt(number)

    def is_open(self, bar: float = 0.0) -> bool:
        """Tell whether it may be chance that the mean is on this side of a bar."""
        return abs(self.mean - bar) < self.margin

    @property
    def is_even(self) -> bool:
        """Whether neither side is ahead to speak of, as far as seeds agree on that."""
        return abs(self.mean) < EVEN and self.margin <= CHANCE

    @property
    def is_clear(self) -> bool:
        """Whether one side is ahead, and not by chance."""
        return abs(self.mean) >= EVEN and not self.is_open()
