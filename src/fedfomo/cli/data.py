"""The command that downloads public data sets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from fedfomo.cli.terminal import choose, console, parse


@dataclass(frozen=True)
class GetConfig:
    """Download a public data set: mnist, cifar10 or cifar100."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """The data set."""
    folder: Path = Path("data")
    """Folder for its files; it may hold several sets."""


def data(arguments: list[str]) -> None:
    """Fetch data sets."""
    choose("data", {"get": get}, arguments)


def get(arguments: list[str]) -> None:
    """Download a public data set."""
    config = parse("data get", GetConfig, arguments)
    from fedfomo.datasets.download import download

    with DownloadBars(console) as bars:
        download(config.name, config.folder, bars.report)
    console.print(f"{config.name} is in {config.folder}: use it with", soft_wrap=True)
    console.print(f"fedfomo run --dataset {config.name} --data {config.folder}", soft_wrap=True)


class DownloadBars:
    """Follows a download: a bar for each file."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn())
        self._progress = Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> DownloadBars:
        return self

    def __exit__(self, *_: object) -> None:
        if self._tasks:
            self._progress.stop()

    def report(self, file: str, arrived: int, size: int) -> None:
        """Show how much of a file has arrived."""
        self._progress.start()  # not earlier: what fails at once leaves no empty bar
        if file not in self._tasks:
            self._tasks[file] = self._progress.add_task(file, total=size)
        self._progress.update(self._tasks[file], completed=arrived)
