"""The numbers that the paper prints."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from experiments.iclr2021.cells import Case


@dataclass(frozen=True)
class Published:
    """A number as the paper prints it."""

    text: str

    @property
    def mean(self) -> float:
        """The number before the ±."""
        return float(self.text.partition(" ± ")[0])


def published(table: str, row: str, case: Case, kind: str = "rows") -> Published | None:
    """Return what a table of the paper says, if it says something: an accuracy in %, or with "epsilon" a budget."""
    content = _numbers().get("table6" if table == "table4" else table)
    row = "mocha" if row == "mocha-repository" else row  # the paper ran that code, and calls it MOCHA
    if content is None or row not in content.get(kind, {}) or case.name not in content["columns"]:
        return None
    return Published(content[kind][row][content["columns"].index(case.name)])


@cache
def _numbers() -> dict[str, Any]:
    return tomllib.loads((files("experiments.iclr2021") / "paper.toml").read_text(encoding="utf-8"))
