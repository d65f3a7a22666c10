"""What is computed of the paper's tables and figures, and what is not."""

from __future__ import annotations

from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from experiments.iclr2021.queue import Stage
from experiments.iclr2021.results import Results
from fedfomo.cli.progress import duration


def stages_table(stages: Sequence[Stage], results: Results) -> Table:
    """Show how far the queue is."""
    table = Table(title="The queue", title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    for heading in ("stage", "done", "missing", "forecast"):
        table.add_column(heading, justify="left" if heading == "stage" else "right")
    rows: list[tuple[int, int, float]] = []
    for number, stage in enumerate(stages, 1):
        rows.append(_count(stage, results))
        table.add_row(f"{number}. {stage.title}", *_words(rows[-1]))
    done, missing, seconds = (sum(column) for column in zip(*rows, strict=True))
    table.add_section()
    table.add_row("all", *_words((int(done), int(missing), seconds)))
    return table


def cells_table(stage: Stage, results: Results) -> Table:
    """Show every cell of a table or figure."""
    table = Table(title=stage.title, title_justify="left", box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("cell", overflow="fold")
    for heading in ("updated", "trained", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for cell in stage.cells:
        result = results.get(cell)
        name = cell.name.removeprefix(f"{cell.scale}/")
        if result is not None:
            means = (f"{result.mean():.1f}", f"{result.mean('after_training'):.1f}")
            table.add_row(name, *means, duration(result.seconds))
        else:
            table.add_row(name, "missing", "", f"~ {duration(results.forecast([cell]))}", style="dim")
    done, missing, forecast = _words(_count(stage, results))
    table.add_section()
    table.add_row(f"{done} done, {missing} missing", "", "", f"~ {forecast}" if forecast else "")
    return table


def _count(stage: Stage, results: Results) -> tuple[int, int, float]:
    missing = [cell for cell in stage.cells if not results.has(cell)]
    return len(stage.cells) - len(missing), len(missing), results.forecast(missing)


def _words(row: tuple[int, int, float]) -> tuple[str, str, str]:
    done, missing, seconds = row
    return str(done), str(missing), duration(seconds) if missing else ""
