"""The command about runs that are there: their results as a table."""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from fedfomo.cli.terminal import choose, console, parse, require_file
from fedfomo.errors import require
from fedfomo.io import make_folder


@dataclass(frozen=True)
class FrameConfig:
    """Write every figure of every client in every round of some runs as one tidy table.

    Columns: method, seed, client, round, point, metric, value. Points are updated (after the federated update), trained
    (after local training) and final (at the end of the run).
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of runs, comparisons, or of `federate`."""
    out: Path | None = None
    """File to write: .csv, or .parquet, which takes pandas and pyarrow; by default, csv goes to the terminal."""


def runs(arguments: list[str]) -> None:
    """Read runs."""
    choose("runs", {"frame": frame}, arguments)


def frame(arguments: list[str]) -> None:
    """Write results as a tidy table."""
    config = parse("runs frame", FrameConfig, arguments)
    require(bool(config.runs), "give the folders of some runs or comparisons: fedfomo runs frame runs/NAME")
    require_file(config.out)
    from fedfomo.runs.frame import COLUMNS, frame_of, rows_of

    if config.out is None:
        writer = csv.writer(sys.stdout)
        writer.writerow(COLUMNS)
        for folder in config.runs:
            writer.writerows(rows_of(folder))
        return
    is_known = config.out.suffix in (".csv", ".parquet")
    require(is_known, f"{config.out} ends in {config.out.suffix or 'nothing'}: choose .csv or .parquet")
    make_folder(config.out.parent)
    if config.out.suffix == ".parquet":
        frame_of(config.runs).to_parquet(config.out)
    else:
        with config.out.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for folder in config.runs:
                writer.writerows(rows_of(folder))
    console.print(f"written to {config.out}", soft_wrap=True)
