"""Tables of numbers and words: from .csv and .parquet files and DataFrames, with the places that errors name."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fedfomo.errors import InputError, listed, require

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "<na>", "nat", "null", "none"})
"""What stands for a missing value, in any mixture of upper and lower case."""


@dataclass(frozen=True)
class Column:
    """The values of one column: numbers, and words where there is something else."""

    numbers: npt.NDArray[np.float64]  # NaN where there is none
    words: list[str | None] | None  # what stands there, None where it is missing; None: numbers, and missing ones

    def word(self, row: int) -> str | None:
        """Return what stands in a row; None if nothing does."""
        if self.words is not None:
            return self.words[row]
        number = float(self.numbers[row])
        return None if math.isnan(number) else _spelled(number)

    @property
    def is_missing(self) -> npt.NDArray[np.bool_]:
        """Tell in which rows nothing stands."""
        if self.words is None:
            return np.isnan(self.numbers)
        return np.array([word is None for word in self.words], dtype=np.bool_)


@dataclass(frozen=True)
class Table:
    """Columns by name, and where they come from."""

    source: str
    columns: Mapping[str, Column]
    lines: Sequence[int] | None = None  # of a file, that on which each row begins

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())).numbers) if self.columns else 0

    def place(self, row: int, column: str) -> str:
        """Name a value by file, line and column."""
        line = f"row {row}" if self.lines is None else f"line {self.lines[row]}"
        return f"{self.source}, {line}, column '{column}'"


def is_frame(value: Any) -> bool:
    """Tell whether something is a table of pandas or polars, without importing either."""
    return hasattr(value, "columns") and hasattr(value, "dtypes") and hasattr(value, "to_numpy")


def read_table(path: Path) -> Table:
    """Read a .csv or .parquet file."""
    if path.suffix == ".csv":
        return read_csv(path)
    pandas = _pandas(path)
    return table_of_frame(pandas.read_parquet(path), str(path))


def table_of_frame(frame: Any, source: str) -> Table:
    """Take the columns of a DataFrame; its index is left out."""
    names = [str(name) for name in frame.columns]
    _refuse_twice(names, source)
    columns = {name: column_of(frame[own].to_numpy()) for name, own in zip(names, frame.columns, strict=True)}
    return Table(source, columns)


def read_csv(path: Path) -> Table:
    """Read a file with a heading; records without any value are passed over."""
    records = _records(path)
    require(bool(records), f"{path} is empty: it takes a heading, and a line for each example")
    heading = [name.strip() for name in records[0][1]]
    _refuse_other_separators(heading, path)
    _refuse_twice(heading, str(path))
    for line, row in records[1:]:
        require(len(row) == len(heading), f"{path}, line {line}: {len(row)} values under {len(heading)} headings")
    columns = {name: column_of([row[place] for _, row in records[1:]]) for place, name in enumerate(heading)}
    return Table(str(path), columns, [line for line, _ in records[1:]])


def _records(path: Path) -> list[tuple[int, list[str]]]:
    """Return every record that holds something, with the line on which it begins."""
    found: list[tuple[int, list[str]]] = []
    with path.open(newline="", encoding="utf-8-sig") as file:  # Excel begins a file with a mark
        reader, before = csv.reader(file), 0
        for record in reader:
            if any(value.strip() for value in record):
                found.append((before + 1, record))
            before = reader.line_num  # a value in quotes may span several
    return found


def _refuse_other_separators(heading: Sequence[str], path: Path) -> None:
    """Refuse a file whose columns are not separated by commas: Excel writes such where numbers have decimal commas."""
    for mark, kind, name in ((";", "';'", "semicolons"), ("\t", "'\\t'", "tabs")):
        is_other = ",".join(heading).count(mark) >= len(heading)  # more columns than by commas
        way_out = (
            "write it with commas between columns and points in numbers, such as by"
            f" pandas.read_csv(FILE, sep={kind}, decimal=',').to_csv(FILE, index=False)"
        )
        require(not is_other, f"{path}: its heading separates columns by {name}: {way_out}")


def column_of(values: Sequence[Any] | npt.NDArray[Any]) -> Column:
    """Tell numbers from words."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return Column(values.astype(np.float64), None)
    words = [_word(value) for value in values]
    numbers = np.array([_number(word) for word in words], dtype=np.float64)
    has_words = any(word is not None and math.isnan(number) for word, number in zip(words, numbers, strict=True))
    is_text = any(isinstance(value, str) for value in values)
    return Column(numbers, words if has_words or is_text else None)


def _word(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    word = _spelled(value) if isinstance(value, float) else str(value).strip()
    return None if word.lower() in MISSING else word


def _spelled(number: float) -> str:
    return str(int(number)) if number.is_integer() else repr(number)


def _number(word: str | None) -> float:
    try:
        return math.nan if word is None else float(word)
    except ValueError:
        return {"true": 1.0, "false": 0.0}.get(cast(str, word).lower(), math.nan)


def _refuse_twice(names: Sequence[str], source: str) -> None:
    twice = [f"'{name}'" for name, number in Counter(names).items() if number > 1]
    require(not twice, f"{source} has several columns called {listed(twice)}: give each a name of its own")


def _pandas(path: Path) -> Any:
    try:
        import pandas  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(f"{path} needs pandas: pip install 'fedfomo[tables]', or write it as .csv") from None
    return pandas
