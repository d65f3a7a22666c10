"""What is computed of the paper's tables and figures, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from experiments.iclr2021.queue import Stage
from experiments.iclr2021.results import Results


def stages_table(stages: Sequence[Stage], results: Results) -> Table:
    """Show how far the queue is."""
    table = _table("The queue", "stage", "done", "missing")
    counts = [(sum(results.has(cell) for cell in stage.cells), len(stage.cells)) for stage in stages]
    for number, (stage, (done, of)) in enumerate(zip(stages, counts, strict=True), 1):
        table.add_row(f"{number}. {stage.title}", str(done), str(of - done))
    done, of = (sum(column) for column in zip(*counts, strict=True))
    table.add_section()
    table.add_row("all", str(done), str(of - done))
    return table


def cells_table(stage: Stage, results: Results) -> Table:
    """Show every cell of a table or figure."""
    table = _table(stage.title, "cell", "updated", "trained", "time")
    for cell in stage.cells:
        result = results.get(cell)
        name = cell.name.removeprefix(f"{cell.scale}/")
        if result is not None:
            means = (f"{result.mean():.1f}", f"{result.mean('after_training'):.1f}")
            table.add_row(name, *means, duration(result.seconds))
        else:
            table.add_row(name, "missing", "", "", style="dim")
    done = sum(results.has(cell) for cell in stage.cells)
    table.add_section()
    table.add_row(f"{done} done, {len(stage.cells) - done} missing", "", "", "")
    return table


def _table(title: str, first: str, *others: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, overflow="fold")
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def duration(seconds: float) -> str:
    """Say a length of time as people do."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
