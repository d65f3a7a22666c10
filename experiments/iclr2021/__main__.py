"""The command that reproduces the paper: `python -m experiments.iclr2021 table2 --scale lite --data data`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from experiments.iclr2021.paper_tables import FIGURES, TABLES, find_target
from experiments.iclr2021.queue import Stage, stages
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import MANY_CLIENTS, SHOWN, Cell
from fedfomo.cli.main import run_and_exit
from fedfomo.cli.terminal import console, warn
from fedfomo.errors import require, unknown

WHOLE = ("queue", "pages", "figures")
"""Names that stand for everything."""


@dataclass(frozen=True)
class ReproduceConfig:
    """Compute the paper's tables and figures cell by cell, and show the paper's numbers beside ours.

    A cell is one run of one method. Finished cells are files in --results and are never computed again; a cell that
    was interrupted goes on from its last complete round. Without a name: what is done, and what is missing.
    """

    name: Annotated[str | None, tyro.conf.Positional] = None
    """A table (table1 to table6, authors, augmentation, precision, everyone), a figure (clients, weights, exploration,
    targets, validation, privacy), queue for everything in order of importance, or pages or figures to write all of
    them from what is computed."""
    scale: Literal["smoke", "lite", "paper"] = "lite"
    """How large: smoke (seconds, on digits), lite (a fifth of each client's data), paper (the full protocol). The
    queue has an order of scales and seeds of its own."""
    seeds: int = 1
    """How many seeds, from 0; the paper has three runs, and five shuffles of targets in table 3."""
    data: Path | None = None
    """Folder that holds mnist, cifar10 and cifar100."""
    results: Path = Path("results")
    """Folder of finished cells."""
    work: Path = Path("runs/iclr2021")
    """Folder of cells that are being computed."""
    pages: Path = Path("docs/results")
    """Folder of pages and figures."""
    front: Path = Path("README.md")
    """A page elsewhere with blocks of numbers (<!-- begin front -->), which pages writes anew as well."""
    workers: int | None = None
    """Worker processes; by default one per core, 0 for none. The result does not depend on it."""
    list: bool = False
    """Compute nothing: say what is done and what is missing."""

    def __post_init__(self) -> None:
        require(self.seeds >= 1, f"seeds is {self.seeds}: give at least 1")
        if self.name is not None and self.name not in (known := [*TABLES, *FIGURES, *WHOLE]):
            raise unknown("table or figure", self.name, known)


def reproduce(arguments: list[str]) -> None:
    """Reproduce the paper's tables and figures."""
    config = tyro.cli(ReproduceConfig, args=arguments, prog="python -m experiments.iclr2021")
    results = Results(config.results)
    if config.name is None or config.list:
        _list(config, results)
    elif config.name == "pages":
        from experiments.fedfomo_plus.page import write
        from experiments.iclr2021.render import write_pages

        for path in (*write_pages(results, config.pages, config.front), *write(config.results)):
            console.print(f"written to {path}", soft_wrap=True)
    elif config.name == "figures":
        for name in FIGURES:
            _draw(name, config, results)
        _draw_features(config)
    else:
        from experiments.iclr2021.run import compute_all

        compute_all([cell for stage in _stages(config) for cell in stage.cells], config, results)
        if config.name in TABLES:
            from experiments.iclr2021.render import table_in_markdown

            if config.scale == "smoke":
                warn("a smoke run shows that everything runs; its numbers say nothing about the paper's")
            sys.stdout.write(table_in_markdown(TABLES[config.name], config.scale, results) + "\n")
        elif config.name in FIGURES:
            _draw(config.name, config, results, (config.scale,))


def _stages(config: ReproduceConfig) -> list[Stage]:
    if config.name in (None, *WHOLE):
        return stages()
    target = find_target(config.name)
    cells: dict[str, Cell] = {cell.name: cell for cell in target.cells(config.scale, range(config.seeds))}
    telling = tuple(cell for cell in cells.values() if cell.is_informative)
    left_out = len(cells) - len(telling)
    why = f"a fifth of a client's data is too little for each of {MANY_CLIENTS} clients: give --scale paper"
    require(bool(telling), f"{config.name} has no cell at this scale: {why}")
    if left_out:
        warn(f"{left_out} of {len(cells)} cells are left out: {why}")
    return [Stage(target.title, telling)]


def _list(config: ReproduceConfig, results: Results) -> None:
    from experiments.iclr2021.status import cells_table, stages_table

    planned = _stages(config)
    if config.name in (None, *WHOLE):
        console.print(stages_table(planned, results))
        console.print(
            "Every cell of a table or figure: python -m experiments.iclr2021 table2 --scale lite --list", style="dim"
        )
    else:
        console.print(cells_table(planned[0], results))


def _draw_features(config: ReproduceConfig) -> None:
    from experiments.iclr2021.features.page import draw
    from experiments.iclr2021.features.store import Store

    if draw(Store(config.results / "features"), path := config.pages / "features.svg"):
        console.print(f"written to {path}", soft_wrap=True)


def _draw(name: str, config: ReproduceConfig, results: Results, scales: tuple[str, ...] = SHOWN) -> None:
    from experiments.iclr2021.figures import draw

    for path in draw(name, results, config.pages, scales):
        console.print(f"written to {path}", soft_wrap=True)


if __name__ == "__main__":
    run_and_exit(reproduce)
