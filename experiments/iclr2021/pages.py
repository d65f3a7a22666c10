"""Pages of results: every table with the paper's number beside ours and the difference, written from results alone."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

from experiments.iclr2021.catalogue import TABLES, Column, Row, Table
from experiments.iclr2021.cells import SHOWN, Cell
from experiments.iclr2021.overview import BLANK, refresh
from experiments.iclr2021.paper import published
from experiments.iclr2021.results import MIXED, Results, signed
from fedfomo.datasets.scenario_summary import PUBLISHED_EMD

HEADINGS = {"paper": "The full protocol", "lite": "A fifth of each client's data"}
MISSING = "–"
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
    """Write the page of every table, and what the overview, and a front page if there is one, say of numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for table in TABLES.values():
        written.append(folder / f"{table.name}.md")
        written[-1].write_text(page(table, results), encoding="utf-8")
    overview = folder / "README.md"
    if not overview.exists():
        overview.write_text(BLANK, encoding="utf-8")
    for path in (overview, front):
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
    for scale in (scale for scale in SHOWN if any(cell.is_telling for cell in _all_cells(table, scale))):
        parts.append(f"## {HEADINGS[scale]} (`--scale {scale}`)")
        parts.append(
            f"    python -m experiments.iclr2021 {table.name} --scale {scale} --seeds {table.runs} --data FOLDER"
        )
        if any(results.all_seeds(cell) for cell in _all_cells(table, scale)):
            parts += [ORIENTATION] if is_papers and scale != "paper" else []
            parts += [table_in_markdown(table, scale, results), *_budgets(table, scale, results)]
            parts += ["Behind these numbers:", _details(table, scale, results)]
            parts += [*_refusals(table, scale, results), *_shuffles(table, scale, results)]
        else:
            parts.append("Nothing of this has been computed yet." + (" The paper's numbers:" if is_papers else ""))
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
            counts = ", ".join(f"{runs[seed].strangers} with seed {seed}" for seed in sorted(runs))
            lines.append(
                f"{column.heading}: of {column.case.clients} clients, so many aim at another distribution than the one"
                f" that they train on: {counts}."
            )
    return lines


def _cell(row: Row, column: Column, scale: str) -> Cell:
    return Cell(row.case_in(column), row.variant, scale)


def _all_cells(table: Table, scale: str) -> list[Cell]:
    return [_cell(row, column, scale) for column in table.columns for row in table.rows]
