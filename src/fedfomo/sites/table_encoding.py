"""The one encoding of all sites' tables, which follows from the statistics of each (`table_statistics`).

A number stays one, the missing are the mean and a mark beside it, and words are a column each.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedfomo.core.data import Examples
from fedfomo.errors import InputError, listed, reading, require
from fedfomo.io import write_atomically
from fedfomo.runs.federated_statistics import LEAST_DEVIATION
from fedfomo.sites.argument_names import argument
from fedfomo.sites.table_statistics import TableStatistics, not_a_number, require_columns, require_usable
from fedfomo.sites.tables import Column, Table

Labels = Literal["classes", "numbers"]
"""What labels are: classes, or any numbers, to be predicted as such."""

MOST_CLASSES = 2**31


@dataclass(frozen=True)
class TableEncoding:
    """How all sites turn their tables into inputs and labels."""

    label: str
    labels: Labels
    classes: tuple[str, ...]  # words of the label, in the order of their numbers; none: the label is a number
    numbers: dict[str, tuple[float, float]]  # of each column of numbers, what is subtracted, and what it is divided by
    fill: dict[str, float]  # of those in which some are missing, what stands for these
    words: dict[str, tuple[str, ...]]  # of every other column
    order: tuple[str, ...]  # of the columns

    @staticmethod
    def of(
        sites: Sequence[TableStatistics], label: str = "label", labels: Labels = "classes", *, standardise: bool = False
    ) -> TableEncoding:
        """Find the encoding that fits the tables of all sites."""
        known = reduce(TableStatistics.joined, sites)
        columns = {name: own for name, own in known.columns.items() if name != label}
        require(label in known.columns, f"{known.source} has no column {label}, which is to be the label")
        require(bool(columns), f"{known.source} has the column {label} alone, and no inputs")
        for name, own in known.columns.items():
            require_usable(name, own, known.source)
        numbers = {
            name: (own.mean, own.deviation if own.deviation >= LEAST_DEVIATION else 1.0) if standardise else (0.0, 1.0)
            for name, own in columns.items()
            if not own.words
        }
        fill = {name: own.mean for name, own in columns.items() if name in numbers and own.missing}
        words = {name: tuple(sorted(own.words)) for name, own in columns.items() if own.words}
        classes = tuple(sorted(known.columns[label].words))
        require(labels == "classes" or not classes, f"column '{label}' holds words, which are no numbers to predict")
        return TableEncoding(label, labels, classes, numbers, fill, words, tuple(columns))

    @property
    def features(self) -> list[str]:
        """The names of the inputs, in their order."""
        names: list[str] = []
        for name in self.order:
            names += [f"{name}={word}" for word in self.words[name]] if name in self.words else [name]
            names += [f"{name} is missing"] if name in self.fill else []
        return names

    def encode(self, table: Table) -> Examples:
        """Turn a table into inputs and labels."""
        require_columns(table, (*self.order, self.label), "the encoding")
        parts = [self._inputs(table, name) for name in self.order]
        inputs = np.concatenate(parts, axis=1) if len(table) else np.empty((0, len(self.features)))
        return Examples(torch.from_numpy(inputs).float(), self._labels(table))

    def write(self, path: Path | str) -> None:
        """Write the encoding, for sites that are not here."""
        write_atomically(Path(path), json.dumps(asdict(self), indent=1).encode())

    @staticmethod
    def read(path: Path | str) -> TableEncoding:
        """Read an encoding."""
        with reading(Path(path), "write it again, with TableEncoding.write"):
            found: dict[str, Any] = json.loads(Path(path).read_bytes())
            found["numbers"] = {name: tuple(pair) for name, pair in found["numbers"].items()}
            found["words"] = {name: tuple(words) for name, words in found["words"].items()}
            found["classes"], found["order"] = tuple(found["classes"]), tuple(found["order"])
            return TableEncoding(**found)

    def _inputs(self, table: Table, name: str) -> Any:
        column = table.columns[name]
        if name in self.words:
            return self._one_column_each(table, name, column)
        odd = np.flatnonzero(np.isnan(column.numbers) & ~column.is_missing)
        for row in odd[:1].tolist():
            raise not_a_number(table, row, name)
        missing = column.is_missing
        if missing.any() and name not in self.fill:
            row = int(np.flatnonzero(missing)[0])
            raise InputError(f"{table.place(row, name)}: a value is missing, where none was when the encoding was made")
        subtracted, divided = self.numbers[name]
        values = (np.where(missing, self.fill.get(name, 0.0), column.numbers) - subtracted) / divided
        return np.stack([values, missing], axis=1) if name in self.fill else values[:, None]

    def _one_column_each(self, table: Table, name: str, column: Column) -> Any:
        known = {word: place for place, word in enumerate(self.words[name])}
        values = np.zeros((len(table), len(known)))
        for row in range(len(table)):
            word = column.word(row)
            if word is not None:
                require(word in known, f"{table.place(row, name)}: '{word}' is not among {listed([*known])}")
                values[row, known[word]] = 1
        return values

    def _labels(self, table: Table) -> Tensor:
        column, name = table.columns[self.label], self.label
        for row in np.flatnonzero(column.is_missing)[:1].tolist():
            raise InputError(f"{table.place(row, name)}: the label is missing: give one, or leave out the line")
        if self.classes:
            known = {word: number for number, word in enumerate(self.classes)}
            found: list[int] = []
            for row in range(len(table)):
                word = str(column.word(row))
                require(word in known, f"{table.place(row, name)}: '{word}' is not among {listed([*known])}")
                found.append(known[word])
            return torch.tensor(found, dtype=torch.int64)
        values = column.numbers
        for row in np.flatnonzero(~np.isfinite(values))[:1].tolist():
            raise InputError(f"{table.place(row, name)}: the label is not finite: give a number, or leave out the line")
        if self.labels == "numbers":
            return torch.from_numpy(values).float()
        for row in np.flatnonzero((values != np.round(values)) | (values < 0) | (values > MOST_CLASSES))[:1].tolist():
            raise InputError(
                f"{table.place(row, name)}: label {values[row]:g} is no class: classes are words, or whole numbers"
                f" from 0; where numbers are to be predicted, say so with {argument('labels', 'numbers')}"
            )
        return torch.from_numpy(values).long()
