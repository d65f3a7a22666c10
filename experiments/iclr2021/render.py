"""Pages of results: every table with the paper's number beside ours, and the overview, written from results alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from experiments.iclr2021 import authors_page, cnn_page
from experiments.iclr2021.affinity_recovery import recovery_table
from experiments.iclr2021.claims import CLAIMS, VERDICTS, Claim, Finding, findings
from experiments.iclr2021.cnn_standings import cnn_standings
from experiments.iclr2021.features import page as features
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.paired import lead
from experiments.iclr2021.paper_tables import FIGURES, TABLES, Column, Row, Table
from experiments.iclr2021.rankings import comparison
from experiments.iclr2021.remaining import remaining
from experiments.iclr2021.results import MIXED, Results
from experiments.iclr2021.settings import SHOWN, Cell, Target, published
from experiments.iclr2021.standings_tables import short_table
from experiments.markdown import MISSING, NOTHING, filled, signed
from fedfomo.datasets.scenario_summary import PUBLISHED_EMD

HEADINGS = {"paper": "The full protocol", "lite": "A fifth of each client's data"}
LABEL_DISTANCES = ("table2", "table5")
"""Tables for which the paper prints how far clients' labels are apart."""
HOW_TO_READ = f"""\
Accuracy in %, the mean over clients after the last federated update; ± is the standard deviation over seeds, where
there are several. {MISSING} stands for a cell that has not been computed. The last row is no method: it answers every
client with the most frequent label of its training data, or of its validation data if it aims at others' data. *Mixed*
clients are those for whom that is right in less than {100 * MIXED:.0f} % of their test data."""
BESIDE = "Behind a number, in brackets, the paper's and the difference ours − paper."
DISTANCE = (
    "EMD says how far clients' labels are from everybody's ([how it is counted](../data.md)): ours, and the paper's."
)
ORIENTATION = """\
With a fifth of the data this is another experiment than the paper's: methods compare with each other, and the
differences from the paper's numbers are for orientation only."""
CONSTANT = "one constant answer a client"


def write_pages(results: Results, folder: Path, front: Path | None = None) -> list[Path]:
    """Write the page of every table, and the blocks of the pages in prose and of a front page, as far as they exist."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for table in TABLES.values():
        written.append(folder / f"{table.name}.md")
        text = cnn_page.page(results) if table is cnn_page.REGIMES else page(table, results)
        written[-1].write_text(text, encoding="utf-8")
    store = Store(results.folder / "features")
    written.append(folder / "features.md")
    written[-1].write_text(features.page(store), encoding="utf-8")
    overview = folder / "README.md"
    if not overview.exists():
        overview.write_text(BLANK, encoding="utf-8")
    for path in (*(folder / name for name in PROSE), front):
        if path is not None and path.exists():
            path.write_text(refresh(path.read_text(encoding="utf-8"), results, folder), encoding="utf-8")
            written.append(path)
    return written


def page(table: Table, results: Results) -> str:
    """Return the page of a table: its numbers at every scale, and what is behind them."""
    is_papers = any(published(table.name, row.name, column.case) for row in table.rows for column in table.columns)
    title = f"{table.name.replace('table', 'Table ')}: {table.title}" if is_papers else table.title
    parts = [f"# {title}", HOW_TO_READ, *([BESIDE] if is_papers else [])]
    parts += [DISTANCE] if table.name in LABEL_DISTANCES else []
    for scale in (scale for scale in SHOWN if any(cell.is_informative for cell in _all_cells(table, scale))):
        parts.append(f"## {HEADINGS[scale]} (`--scale {scale}`)")
        parts.append(
            f"    python -m experiments.iclr2021 {table.name} --scale {scale} --seeds {table.runs} --data FOLDER"
        )
        if any(results.all_seeds(cell) for cell in _all_cells(table, scale)):
            parts += [ORIENTATION] if is_papers and scale != "paper" else []
            parts += [table_in_markdown(table, scale, results), *_budgets(table, scale, results)]
            parts += [*_paired(table, scale, results)]
            parts += ["Behind these numbers:", _details(table, scale, results)]
            parts += [*_refusals(table, scale, results), *_shuffles(table, scale, results)]
        else:
            parts.append(NOTHING + (" The paper's numbers:" if is_papers else ""))
            parts += [table_in_markdown(table, scale, results)] if is_papers else []
    return "\n\n".join(parts) + "\n"


def table_in_markdown(table: Table, scale: str, results: Results) -> str:
    """Return a table in the paper's shape: ours, and in brackets the paper's number and the difference."""
    lines = [
        f"| method | {' | '.join(_heading(column, table, scale, results) for column in table.columns)} |",
        f"| --- |{' ---: |' * len(table.columns)}",
    ]
    for row in table.rows:
        if row.is_papers or any(results.all_seeds(_cell(row, column, scale)) for column in table.columns):
            entries = [entry(table, row, column, scale, results) for column in table.columns]
            lines.append(f"| {row.label} | {' | '.join(entries)} |")
    lines.append(f"| {CONSTANT} | {' | '.join(_constant(table, column, scale, results) for column in table.columns)} |")
    return "\n".join(lines)


def _constant(table: Table, column: Column, scale: str, results: Results) -> str:
    """Return what a constant answer would reach, over the seeds of whatever is computed of a column."""
    runs = {seed: run for row in table.rows for seed, run in results.all_seeds(_cell(row, column, scale)).items()}
    return f"{fmean(run.constant for run in runs.values()):.2f}" if runs else MISSING


def entry(table: Table, row: Row, column: Column, scale: str, results: Results) -> str:
    """Return ours, the paper's number and the difference, as far as they exist."""
    cell = _cell(row, column, scale)
    ours, theirs = results.accuracy(cell), published(table.name, row.name, column.case)
    value = MISSING if ours is None else f"**{ours}**{_fewer(len(ours.values), table, column, scale, results)}"
    if theirs is None:
        return value
    difference = "" if ours is None else f", {signed(ours.mean - theirs.mean, 2)}"
    return f"{value} ({theirs.text}{difference})"


def _fewer(seeds: int, table: Table, column: Column, scale: str, results: Results) -> str:
    """Say how many seeds a number has, if others in its column have more."""
    most = max(len(results.all_seeds(_cell(row, column, scale))) for row in table.rows)
    return f", {seeds} of {most} seeds" if seeds < most else ""


def _heading(column: Column, table: Table, scale: str, results: Results) -> str:
    """Name a column, with the label distance of its clients as the paper's authors count it: ours, and theirs."""
    found = [
        result.content["label_distance"]["official"]
        for row in table.rows
        for result in results.all_seeds(_cell(row, column, scale)).values()
    ]
    theirs = PUBLISHED_EMD.get(column.case.dataset, {}).get(column.case.distributions or 0)
    if theirs is None or column.case.scenario != "latent" or table.name not in LABEL_DISTANCES:
        return column.heading
    return f"{column.heading}, EMD {f'{fmean(found):.2f}' if found else MISSING} ({theirs:.2f})"


def _paired(table: Table, scale: str, results: Results) -> list[str]:
    """Return by how much the second column differs from the first, where a page compares them seed by seed."""
    if not table.pairs_columns:
        return []
    (before, after), lines = table.columns, list[str]()
    for row in table.rows:
        runs = [results.all_seeds(_cell(row, column, scale)) for column in (after, before)]
        found = lead(*({seed: run.content["after_update"]["accuracy"] for seed, run in one.items()} for one in runs))
        if found is not None:
            each = ", ".join(signed(value, 2) for value in found.values)
            width = MISSING if math.isinf(found.half_width) else f"± {found.half_width:.2f}"
            lines.append(f"| {row.label} | {signed(found.mean, 2)} | {width} | {each} |")
    words = "In points, over the seeds that both have; the interval is Student's, 95 %:"
    head = f"| method | {after.heading} − {before.heading} | interval | by seed |\n| --- | ---: | ---: | --- |"
    return [words, "\n".join([head, *lines])] if lines else []


def _budgets(table: Table, scale: str, results: Results) -> list[str]:
    """Return a table of ε, where the paper has one: mean and largest over clients, as far as they are finite."""
    rows = [row for row in table.rows if published(table.name, row.name, table.columns[0].case, "epsilon")]
    if not rows:
        return []
    headings = " | ".join(column.heading for column in table.columns)
    lines = [
        f"| ε of training records, mean and largest over clients, δ = 10⁻⁵ | {headings} |",
        f"| --- |{' ---: |' * len(table.columns)}",
    ]
    for row in rows:
        entries: list[str] = []
        for column in table.columns:
            runs = results.all_seeds(_cell(row, column, scale)).values()
            spent = [epsilon for run in runs for epsilon in run.epsilons]
            ours = f"**{fmean(spent):.2f}**, at most {max(spent):.2f}" if spent else MISSING
            theirs = published(table.name, row.name, column.case, "epsilon")
            entries.append(f"{ours} ({theirs.text if theirs else MISSING})")
        lines.append(f"| {row.label} | {' | '.join(entries)} |")
    return ["\n".join(lines)]


def _details(table: Table, scale: str, results: Results) -> str:
    lines = [
        "| cell | after update | mixed clients | after training | worst client | with seed | minutes a run |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for column in table.columns:
        for row in table.rows:
            cell = _cell(row, column, scale)
            runs = results.all_seeds(cell)
            if runs:
                worst = 100 * fmean(min(run.accuracies()) for run in runs.values())
                mixed = fmean(run.mean_of_mixed for run in runs.values())
                minutes = fmean(run.seconds for run in runs.values()) / 60
                lines.append(
                    f"| {column.heading}: {row.label} | {results.accuracy(cell)} |"
                    f" {MISSING if math.isnan(mixed) else f'{mixed:.2f}'} |"
                    f" {results.accuracy(cell, 'after_training')} | {worst:.1f} | {', '.join(map(str, runs))} |"
                    f" {minutes:.1f} |"
                )
    return "\n".join(lines)


def _refusals(table: Table, scale: str, results: Results) -> list[str]:
    """Say in which cells trainings diverged to what is no number."""
    found = {
        f"{column.heading}: {row.label}": sum(run.refusals for run in results.all_seeds(cell).values())
        for column in table.columns
        for row in table.rows
        for cell in [_cell(row, column, scale)]
    }
    named = [f"{name} ({number})" for name, number in found.items() if number]
    return [f"Trainings that diverged: {'; '.join(named)}."] if named else []


def _shuffles(table: Table, scale: str, results: Results) -> list[str]:
    """Say how many clients the shuffled targets really are foreign to."""
    lines: list[str] = []
    for column in (column for column in table.columns if column.case.scenario == "ood"):
        runs = {seed: run for row in table.rows for seed, run in results.all_seeds(_cell(row, column, scale)).items()}
        if runs:
            counts = ", ".join(f"{runs[seed].num_ood_clients} with seed {seed}" for seed in sorted(runs))
            lines.append(
                f"{column.heading}: of {column.case.clients} clients, so many aim at another distribution than the one"
                f" that they train on: {counts}."
            )
    return lines


def _cell(row: Row, column: Column, scale: str) -> Cell:
    return Cell(row.case_in(column), row.variant, scale)


def _all_cells(table: Table, scale: str) -> list[Cell]:
    return [_cell(row, column, scale) for column in table.columns for row in table.rows]


PROSE = ("README.md", "paper.md", "causes.md", "progress.md")
"""Pages that are written by hand, but for their blocks."""
LARGE_DEVIATION = 5.0  # points of accuracy
BLANK = "# Results\n\n" + "\n\n".join(
    f"<!-- begin {name} -->\n<!-- end {name} -->"
    for name in ("state", "comparison", "claims", "discovery", "far", "figures")
)


def refresh(text: str, results: Results, folder: Path) -> str:
    """Replace every block between `begin NAME` and `end NAME` by what results, and drawings in a folder, say now."""
    blocks: dict[str, Callable[[], str]] = {
        "state": lambda: state(results),
        "remaining": lambda: remaining(results),
        "claims": lambda: claims(results),
        "discovery": lambda: recovery_table(results),
        "far": lambda: far(results),
        "figures": lambda: figures(folder),
        "comparison": lambda: comparison(results),
        "rule": lambda: features.RULE,
        "images": lambda: short_table(cnn_standings(results)),
        "front": lambda: features.front(Store(results.folder / "features")),
        "many": lambda: authors_page.many_clients(results.folder / "authors"),
        "contradictions": authors_page.contradictions,
        "diverged": lambda: authors_page.diverged(results.folder / "authors"),
        "progress": lambda: features.progress(Store(results.folder / "features")),
    }
    return filled(text, blocks)


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
                if abs(ours.mean - theirs.mean) >= LARGE_DEVIATION:
                    gap = signed(ours.mean - theirs.mean)
                    lines.append(
                        f"- {table.name}, {column.heading}, {row.label}: {ours} here, {theirs.text} there, {gap}"
                    )
    head = f"{len(lines)} of {done} cells in full differ by {LARGE_DEVIATION:g} points or more"
    head += " from the number that the paper has"
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
    cells = {cell.name: cell for cell in target.cells(scale) if cell.is_informative}.values()
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
