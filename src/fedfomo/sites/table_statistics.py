"""Statistics of a site's tables, to be shared: means, deviations, and how often each word occurs in each column."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedfomo.errors import InputError, listed, reading, require
from fedfomo.io import write_atomically
from fedfomo.privacy.private_data import Noise, SystemNoise
from fedfomo.runs.federated_statistics import Moments, bounded_sums
from fedfomo.sites.argument_names import argument
from fedfomo.sites.tables import Column, Table

MOST_WORDS = 1000  # different ones in a column
LEAST_VALUES = 5  # in a column; of fewer, all may well be different kinds
MOST_DIFFERENT = 0.8  # share of a column's values; with more, its words name single records


@dataclass(frozen=True)
class TableNoise:
    """What makes a site's statistics differentially private: noise, and what must be known without looking."""

    noise: float
    """Standard deviation of the noise on a site's sums, in units of what one record can change."""
    bounds: Mapping[str, tuple[float, float]]
    """Least and greatest value of each column of numbers."""
    words: Mapping[str, Sequence[str]]
    """The words of each other column."""


@dataclass(frozen=True)
class ColumnStatistics:
    """What a column holds."""

    count: float  # of numbers
    mean: float
    squares: float  # summed squared deviations from the mean
    missing: float
    words: dict[str, float]  # how often each stands there

    def joined(self, other: ColumnStatistics) -> ColumnStatistics:
        """Return the statistics of both."""
        one, two = (Moments(*(np.array([v]) for v in (s.count, s.mean, s.squares))) for s in (self, other))
        both = one.joined(two)
        words = {w: self.words.get(w, 0) + other.words.get(w, 0) for w in {**self.words, **other.words}}
        figures = (float(part[0]) for part in (both.counts, both.means, both.squares))
        return ColumnStatistics(*figures, missing=self.missing + other.missing, words=words)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return math.sqrt(self.squares / max(1.0, self.count))


@dataclass(frozen=True)
class TableStatistics:
    """What one site's tables hold, or those of several."""

    columns: Mapping[str, ColumnStatistics]
    source: str  # where the columns were first met, for errors

    @staticmethod
    def of(train: Table, *others: Table, categories: Sequence[str] = ()) -> TableStatistics:
        """Measure a site's training table; of its other parts count only which words there are, and what is missing."""
        found = {name: _measured(column, name in categories) for name, column in train.columns.items()}
        for table in others:
            require_columns(table, tuple(found), train.source)
            for name, column in table.columns.items():
                more = _measured(column, name in categories)
                found[name] = found[name].joined(ColumnStatistics(0, 0, 0, more.missing, dict.fromkeys(more.words, 0)))
        return TableStatistics(found, train.source)

    @staticmethod
    def private(train: Table, how: TableNoise, source: Noise | None = None) -> TableStatistics:
        """Measure a site's training table by one Gaussian query."""
        names = [*how.bounds, *how.words]
        require_columns(train, names, "the noise's bounds and words")
        require(bool(names), "noisy statistics need the bounds or words of every column")
        flags = {
            n: np.array([[train.columns[n].word(r) == w for r in range(len(train))] for w in how.words[n]])
            for n in how.words
        }
        sums = {n: bounded_sums(train.columns[n].numbers[:, None], how.bounds[n]) for n in how.bounds}
        # A record adds up to three sums for a number, and one for a word or for the lack of one.
        scale = how.noise * math.sqrt(3 * len(sums) + len(flags))
        share = math.sqrt(3)  # `noisy` multiplies by the root of the sums of one column
        source = source or SystemNoise()
        found: dict[str, ColumnStatistics] = {}
        for name, own in sums.items():
            noisy = Moments.noisy(own, how.bounds[name], scale / share, source)
            found[name] = ColumnStatistics(
                float(noisy.counts[0]), float(noisy.means[0]), float(noisy.squares[0]), 1.0, {}
            )
        for name, rows in flags.items():
            drawn = source.draw(len(rows)).numpy() * scale
            words = {w: max(0.0, float(n)) for w, n in zip(how.words[name], rows.sum(1) + drawn, strict=True)}
            found[name] = ColumnStatistics(0, 0, 0, 1.0, words)
        return TableStatistics({name: found[name] for name in train.columns}, train.source)

    def joined(self, other: TableStatistics) -> TableStatistics:
        """Return the statistics of both; columns go in the order of the first."""
        _require_same(self.columns, other.columns, self.source, other.source)
        together = {name: own.joined(other.columns[name]) for name, own in self.columns.items()}
        return TableStatistics(together, self.source)

    def write(self, path: Path | str) -> str:
        """Write them, to be sent; return a sentence that says which columns' words leave with them."""
        columns = {name: asdict(own) for name, own in self.columns.items()}
        source = "/".join(Path(self.source).absolute().parts[-2:])  # SITE/train.csv: where a site keeps it is its own
        write_atomically(Path(path), json.dumps({"source": source, "columns": columns}, indent=1).encode())
        told = [f"'{name}'" for name, own in self.columns.items() if own.words]
        words = f"every word of {', '.join(told)}, and how often it occurs" if told else "no word"
        return f"{path} holds counts, means and squared deviations of numbers; {words}"

    @staticmethod
    def read(path: Path | str) -> TableStatistics:
        """Read them."""
        with reading(Path(path), "write it again, with TableStatistics.write"):
            found = json.loads(Path(path).read_bytes())
            columns = {name: ColumnStatistics(**own) for name, own in found["columns"].items()}
            return TableStatistics(columns, found["source"])


def require_columns(table: Table, names: Sequence[str], where: str) -> None:
    """Refuse a table with other columns than somewhere else."""
    _require_same(dict.fromkeys(names), table.columns, where, table.source)


def require_one_kind(tables: Sequence[Table], categories: Sequence[str]) -> None:
    """Refuse columns that hold words at one place and numbers at another, and name both places."""
    for name in tables[0].columns:
        if name in categories:
            continue
        own = [(table, table.columns[name]) for table in tables if name in table.columns]
        for table, column in own:
            if column.words is None:
                continue
            odd = [row for row, word in enumerate(column.words) if word is not None and np.isnan(column.numbers[row])]
            if odd and any(not np.isnan(other.numbers).all() for _, other in own):
                raise not_a_number(table, odd[0], name)


def not_a_number(table: Table, row: int, name: str) -> InputError:
    """Return the error of a word in a column of numbers."""
    return InputError(
        f"{table.place(row, name)}: '{table.columns[name].word(row)}' is no number, as others of the column are:"
        " correct it, leave it empty if it is missing, or say that the column holds words, with"
        f" {argument('categories', [name])}"
    )


def _measured(column: Column, is_category: bool) -> ColumnStatistics:
    missing = float(column.is_missing.sum())
    if is_category or (column.words is not None and np.isnan(column.numbers).all() and missing < len(column.numbers)):
        found: dict[str, float] = {}
        for row in range(len(column.numbers)):
            word = column.word(row)
            if word is not None:
                found[word] = found.get(word, 0) + 1
        return ColumnStatistics(0, 0, 0, missing, found)
    moments = Moments.of(column.numbers[:, None])
    figures = (float(part[0]) for part in (moments.counts, moments.means, moments.squares))
    return ColumnStatistics(*figures, missing=missing, words={})


def require_few_words(statistics: TableStatistics, categories: Sequence[str]) -> None:
    """Refuse columns that name records rather than kinds of them: their words are not for others."""
    for name, own in statistics.columns.items():
        counts = [count for count in own.words.values() if count]  # in training data; other words are of other parts
        known, values = len(counts), sum(counts)
        is_kind = name in categories or values < LEAST_VALUES or known <= MOST_DIFFERENT * values
        require(
            is_kind,
            f"{statistics.source}, column '{name}': nearly every word is another one ({known} in {values:g} values),"
            f" and all of them would leave the site: leave it out with {argument('drop', [name])}, or say that its"
            f" words may be told, with {argument('categories', [name])}",
        )
        require_usable(name, own, statistics.source)


def require_usable(name: str, own: ColumnStatistics, source: str) -> None:
    """Refuse a column that is of two kinds, or has too many different words."""
    is_one_kind = not (own.words and own.count)
    way_out = f"say that it holds words, with {argument('categories', [name])}, or correct it"
    require(is_one_kind, f"column '{name}' holds numbers at some sites and words at others: {way_out}")
    known = len(own.words)
    way_out = f"leave it out with {argument('drop')}, as every name or number of a person"
    require(known <= MOST_WORDS, f"{source}, column '{name}': {known} different words are too many: {way_out}")


def _require_same(one: Mapping[str, Any], other: Mapping[str, Any], first: str, second: str) -> None:
    if set(one) != set(other):
        raise InputError(
            f"{second} and {first} have different columns ({_only(second, other, one)}; {_only(first, one, other)}):"
            " all parts of all sites take the same"
        )


def _only(source: str, own: Mapping[str, Any], others: Mapping[str, Any]) -> str:
    names = listed([f"'{name}'" for name in own if name not in others]) or "none"
    return f"only in {'/'.join(Path(source).parts[-2:])}: {names}"
