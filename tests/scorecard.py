"""The scorecard: which faults the project is put to, and the figures that came out.

`make torture` leaves one file a figure in `results/trust`; `python tests/scorecard.py` writes them into
`docs/trust.md`. No number of that page is typed by hand.
"""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "trust"
PAGE = ROOT / "docs" / "trust.md"
FIGURE = "figure"  # the name under which a test's report carries it
BEGIN, END = "<!-- scorecard: begin -->", "<!-- scorecard: end -->"


@dataclass(frozen=True)
class Figure:
    """What one fault, brought about often enough, did to the promise that it puts to the test."""

    place: str  # in the scorecard: "01", "01b", …
    promise: str
    fault: str
    outcome: str
    holds: bool
    details: dict[str, Any]
    test: str
    seconds: float

    def save(self, folder: Path = RESULTS) -> None:
        """Write the figure, and where it was measured, as one file."""
        where = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "fedfomo": version("fedfomo"),
            "cores": os.cpu_count(),
        }
        folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**asdict(self), "where": where}, indent=2, ensure_ascii=False)
        (folder / f"{self.place}.json").write_text(content + "\n")


def saved_figures(folder: Path = RESULTS) -> list[Figure]:
    """Read every figure that was saved, in the order of the scorecard."""
    figures: list[Figure] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        del content["where"]
        figures.append(Figure(**content))
    return figures


class Torture:
    """How often to repeat a fault, and what to do with the figure that comes of it."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self.is_full = bool(request.config.getoption("--torture"))
        self._node = request.node
        self._began = time.monotonic()

    def repetitions(self, in_full: int) -> int:
        """How often to repeat what the full form repeats `in_full` times: a tenth of it in the quick form."""
        return in_full if self.is_full else max(1, in_full // 10)

    def record(self, place: str, promise: str, fault: str, outcome: str, holds: bool, **details: Any) -> None:
        """Tell a figure, keep it if it is that of the full form, and fail if the promise was not held."""
        seconds = round(time.monotonic() - self._began, 1)
        figure = Figure(place, promise, fault, outcome, holds, details, self._node.nodeid, seconds)
        self._node.user_properties.append((FIGURE, f"{promise}\n  {fault}\n  {outcome} ({seconds:.0f} s)"))
        if self.is_full:
            figure.save()
        assert holds, f"{promise}: {outcome} {details}"


def table(figures: list[Figure]) -> str:
    """Write the scorecard as a Markdown table."""
    lines = ["| promise | what is done to it | what came of it | held | seconds |", "| --- | --- | --- | --- | ---: |"]
    for figure in figures:
        holds = "yes" if figure.holds else "**no**"
        cells = (figure.promise, figure.fault, figure.outcome, holds, f"{figure.seconds:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def filled(page: str, figures: list[Figure]) -> str:
    """Return the page with its scorecard written anew."""
    before, _, rest = page.partition(BEGIN)
    after = rest.partition(END)[2]
    return f"{before}{BEGIN}\n\n{table(figures)}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(), saved_figures()))
