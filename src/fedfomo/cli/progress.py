"""What a person sees while something takes its time; nothing heavy is imported for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from fedfomo.datasets import embedding


class TrainingBar:
    """Follows the training of an embedder: a bar in a terminal, lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("steps  {task.description}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("", total=None)

    def __enter__(self) -> TrainingBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def report(self, now: embedding.Progress) -> None:
        """Show how far the training is and how long the rest will take."""
        words = f"loss {now.loss:.3f}, accuracy {now.accuracy:.3f}, {duration(now.seconds_left)} left"
        self._progress.update(self._task, completed=now.step, total=now.steps, description=words)
        if not self._console.is_terminal:
            self._console.print(f"step {now.step}/{now.steps}: {words}")
        if now.step == now.steps:
            self._progress.stop()
            self._console.print("trained; now every image is represented and grouped, which takes some minutes")


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


def duration(seconds: float) -> str:
    """Say a length of time as people do."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
