"""The tables of docs/performance.md, written from the files of the last `make bench`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE, RESULTS = ROOT / "docs" / "performance.md", ROOT / "results" / "benchmarks"
BLOCK = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end \1 -->", re.DOTALL)


def write(page: Path = PAGE, results: Path = RESULTS) -> None:
    """Write every block of the page anew."""
    page.write_text(refreshed(page.read_text(encoding="utf-8"), results), encoding="utf-8")


def refreshed(text: str, results: Path = RESULTS) -> str:
    """Return the page with a table for each block; a block has the name of a benchmark."""
    return BLOCK.sub(
        lambda block: f"<!-- begin {block[1]} -->\n{_table(results, block[1])}\n<!-- end {block[1]} -->", text
    )


def _table(results: Path, name: str) -> str:
    content: dict[str, Any] = json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
    lines = ["| | median | lowest to highest |", "| --- | ---: | ---: |"]
    for words, value in content.items():
        if words in ("benchmark", "command", "machine", "repetitions"):
            continue
        if isinstance(value, dict):
            lines.append(
                f"| {words} | {_short(value['median'])} | {_short(value['lowest'])} to {_short(value['highest'])} |"
            )
        else:
            lines.append(f"| {words} | {_short(value)} | |")
    machine, number = content["machine"], content.get("repetitions", 1)
    under = f"`{name}.json`: {machine['processor']}; torch {machine['torch']}; repetitions: {number}."
    return "\n".join([*lines, "", under])


def _short(value: Any) -> str:
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else str(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}".replace("-", "−")


if __name__ == "__main__":
    write()
