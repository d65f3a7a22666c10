"""The overview of all results: prose is written by hand, and what holds numbers is written anew from results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from experiments.iclr2021.catalogue import FIGURES, TABLES
from experiments.iclr2021.cells import SHOWN, Cell, Target
from experiments.iclr2021.claims import CLAIMS, Claim
from experiments.iclr2021.comparison import comparison
from experiments.iclr2021.discovery import discovery
from experiments.iclr2021.findings import VERDICTS, Finding, findings
from experiments.iclr2021.headline import headline
from experiments.iclr2021.paper import published
from experiments.iclr2021.results import Results, signed
from fedfomo.errors import InputError, unknown

FAR = 5.0  # points of accuracy
BLOCK = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end \1 -->", re.DOTALL)
BLANK = "# Results\n\n" + "\n\n".join(
    f"<!-- begin {name} -->\n<!-- end {name} -->"
    for name in ("state", "comparison", "claims", "discovery", "far", "figures")
)


def refresh(text: str, results: Results, folder: Path) -> str:
    """Replace every block between `begin NAME` and `end NAME` by what results, and drawings in a folder, say now."""
    blocks: dict[str, Callable[[], str]] = {
        "state": lambda: state(results),
        "claims": lambda: claims(results),
        "discovery": lambda: discovery(results),
        "far": lambda: far(results),
        "figures": lambda: figures(folder),
        "comparison": lambda: comparison(results),
        "headline": lambda: headline(results),
    }

    def anew(block: re.Match[str]) -> str:
        name = block[1]
        if name not in blocks:
            raise unknown("block of the overview", name, blocks)
        return f"<!-- begin {name} -->\n{blocks[name]()}\n<!-- end {name} -->"

    if len(BLOCK.findall(text)) != text.count("<!-- begin "):
        raise InputError("a block of the overview is not closed: every <!-- begin NAME --> needs its <!-- end NAME -->")
    return BLOCK.sub(anew, text)


def state(results: Results) -> str:
    """Say how much of every table and figure is computed."""
    lines = ["| | what | full protocol | a fifth of the data |", "| --- | --- | ---: | ---: |"]
    tables = [(f"[{name}]({name}.md)", table.target) for name, table in TABLES.items()]
    for label, target in [*tables, *((name, figure) for name, figure in FIGURES.items())]:
        counts = " | ".join(_count(target, scale, results) for scale in SHOWN)
        lines.append(f"| {label} | {target.title} | {counts} |")
    return "\n".join(lines)


def claims(results: Results) -> str:
    """Say of every claim where it holds, as far as anything is computed."""
    lines = ["| the paper says, in short | full protocol | a fifth of the data |", "| --- | --- | --- |"]
    for claim in CLAIMS:
        lines.append(f"| {claim.words} | {' | '.join(_verdict(claim, scale, results) for scale in SHOWN)} |")
    return "\n".join(lines)


def far(results: Results) -> str:
    """List the cells of the full protocol that are far from the paper."""
    lines: list[str] = []
    done = 0
    for table in TABLES.values():
        if table.name == "table4":  # a part of table 6
            continue
        for column in table.columns:
            for row in (row for row in table.rows if row.is_papers):
                cell = Cell(row.case_in(column), row.variant, "paper")
                ours, theirs = results.accuracy(cell), published(table.name, row.name, column.case)
                if ours is None or theirs is None:
                    continue
                done += 1
                if abs(ours.mean - theirs.mean) >= FAR:
                    gap = signed(ours.mean - theirs.mean)
                    lines.append(
                        f"- {table.name}, {column.heading}, {row.label}: {ours} here, {theirs.text} there, {gap}"
                    )
    head = f"{len(lines)} of {done} cells in full differ by {FAR:g} points or more from the number that the paper has"
    return head + (".\n" if not lines else ":\n\n" + "\n".join(lines) + "\n")


def figures(folder: Path) -> str:
    """Show the figures that have been drawn."""
    shown = [
        f"![{figure.title}]({name}-{scale}.svg)"
        for name, figure in FIGURES.items()
        for scale in SHOWN
        if (folder / f"{name}-{scale}.svg").exists()
    ]
    return "\n\n".join(shown) or "None has been drawn yet."


def _count(target: Target, scale: str, results: Results) -> str:
    cells = {cell.name: cell for cell in target.cells(scale) if cell.is_telling}.values()
    if not cells:
        return "too little data"
    return f"{sum(bool(results.all_seeds(cell)) for cell in cells)} of {len(cells)}"


def _verdict(claim: Claim, scale: str, results: Results) -> str:
    found = findings(claim, scale, results)
    if not found:
        return "not computed"
    counts = Counter(finding.verdict for finding in found)
    verdict = ", ".join(f"{word} in {counts[word]}" for word in VERDICTS if counts[word])
    missing = len(claim.pairs) - len(found)
    rest = f"; {missing} not computed" if missing else ""
    return f"{verdict} of {len(found)}: {', '.join(map(_lead, found))}{rest}"


def _lead(finding: Finding) -> str:
    pair, seeds = finding.pair, len(finding.lead.values)
    theirs = "" if pair.papers_lead is None else f" ({signed(pair.papers_lead)})"
    rivals = "" if finding.is_complete else f" against {finding.rivals} of {len(pair.second.variants)}"
    return f"{pair.where} {signed(finding.lead.mean)}{rivals}{theirs}" + (f", {seeds} seeds" if seeds > 1 else "")
