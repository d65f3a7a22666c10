"""The order in which everything is computed, as `queue.toml` has it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from experiments.iclr2021.paper_tables import (
    AUTHORS_OPTIONS,
    CONTROL_METHODS,
    DECIDING_METHODS,
    EXTRA_METHODS,
    FIGURES,
    LATER_METHODS,
    PAPER_METHODS,
    TABLES,
)
from experiments.iclr2021.settings import Cell, Setting, Target

FILE = Path(__file__).with_name("queue.toml")
REPEATED = ("fedfomo", "local", "fedavg")
"""Methods that figures have first, and whose runs are repeated with further seeds before anybody else's."""
METHODS = {
    "paper": [method.name for method in PAPER_METHODS],
    "extra": [method.name for method in EXTRA_METHODS],
    "control": [method.name for method in CONTROL_METHODS],
    "deciding": [method.name for method in DECIDING_METHODS],
    "later": [method.name for method in LATER_METHODS],
    "authors": [method.name for method in AUTHORS_OPTIONS],
}
"""Names that stand for several methods, beside those of the file."""


@dataclass(frozen=True)
class Stage:
    """A part of the queue."""

    title: str
    cells: tuple[Cell, ...]


def stages() -> list[Stage]:
    """Return the queue; no cell is in it twice."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    names = METHODS | content["names"]
    so_far: list[Cell] = []
    seen: set[str] = set()
    found: list[Stage] = []
    for stage in content["stage"]:
        if "parts" in stage:
            cells = [cell for part in stage["parts"] for cell in _cells_of(part, names)]
            so_far += cells
        else:
            cells = _with_more_seeds(so_far if stage["repeat"] == "all" else filter(_is_repeated, so_far))
        found.append(Stage(stage["title"], tuple(_unseen(cells, seen))))
    return found


def _cells_of(part: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> Iterator[Cell]:
    scale: str = part["scale"]
    if "settings" in part:
        methods = [name for word in part["methods"] for name in names.get(word, (word,))]
        known = {(cell.case.name, cell.variant.name): cell for target in _targets() for cell in target.cells(scale)}
        for setting, seed, method in product(part["settings"], range(part.get("seeds", 1)), methods):
            if (setting, method) in known:  # the oracle needs groups
                yield replace(known[setting, method], seed=seed)
        return
    kinds = {
        "tables": {name: table.target for name, table in TABLES.items()},
        "whole": {name: table.whole for name, table in TABLES.items()},
        "figures": FIGURES,
    }
    (kind,) = kinds.keys() & part.keys()
    chosen = kinds[kind] if part[kind] == "all" else part[kind]
    for cell in (cell for name in chosen for cell in kinds[kind][name].cells(scale)):
        if all(_fits(cell, word) for word in part.get("among", ())):
            yield cell


def _fits(cell: Cell, word: str) -> bool:
    """Tell whether a cell is of a repeated method, or whether its setting has the word in its name."""
    return _is_repeated(cell) if word == "repeated" else word in cell.case.name.split("-")


def _targets() -> list[Target]:
    return [*(table.whole for table in TABLES.values()), *FIGURES.values()]


def _is_repeated(cell: Cell) -> bool:
    return cell.variant.method in REPEATED


def _with_more_seeds(cells: Iterable[Cell]) -> list[Cell]:
    """Return the same cells with further seeds, as many as the paper has runs; equal clients follow each other."""
    runs: dict[tuple[Setting, str], int] = {}
    for target in _targets():
        for case, variant in target.pairs:
            runs[case, variant.name] = max(target.runs, runs.get((case, variant.name), 1))
    by_case: dict[tuple[str, Setting], list[Cell]] = {}
    for cell in cells:
        by_case.setdefault((cell.scale, cell.case), []).append(cell)
    return [
        replace(cell, seed=seed)
        for chosen in by_case.values()
        for seed in range(1, max(runs.values()))
        for cell in chosen
        if seed < runs[cell.case, cell.variant.name]
    ]


def _unseen(cells: Iterable[Cell], seen: set[str]) -> Iterator[Cell]:
    for cell in cells:
        if cell.is_informative and cell.name not in seen:
            seen.add(cell.name)
            yield cell
