"""What a person sees while something takes its time; nothing heavy is imported for it."""

from __future__ import annotations

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
