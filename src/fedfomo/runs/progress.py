"""What a person sees of a run while it goes on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedfomo.simulation.callbacks import Callback, FinishedRound

if TYPE_CHECKING:
    from fedfomo.core.client import ClientId
    from fedfomo.core.model import Score


class RunBar(Callback):
    """Follows one run: a bar in a terminal, a line every now and then elsewhere."""

    def __init__(self, console: Console, title: str, rounds: int, cohort: int, clients: int) -> None:
        self._console = console
        self._title = title
        self._rounds = rounds
        self._cohort = cohort
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[accuracy]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        # The last federated update visits every client once more.
        self._task = self._progress.add_task(title, total=rounds * cohort + clients, accuracy="")

    def __enter__(self) -> RunBar:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def start(self, rounds_done: int) -> None:
        """Skip what a checkpoint had already."""
        if rounds_done:
            self._console.print(f"{self._title}: going on after round {rounds_done} of {self._rounds}")
        self._progress.update(self._task, completed=rounds_done * self._cohort)

    def client_done(self, round: int, client: ClientId) -> None:
        """Advance."""
        self._progress.advance(self._task)

    def round_done(self, finished: FinishedRound) -> None:
        """Show the accuracy of the clients that took part; who dropped out was not counted before."""
        number = finished.round + 1
        self._progress.update(self._task, completed=number * self._cohort)
        if not finished.after_update:
            return
        accuracy = f"accuracy {_mean(finished.after_update):.3f}, trained {_mean(finished.after_training):.3f}"
        self._progress.update(self._task, accuracy=f"round {number}/{self._rounds}  {accuracy}")
        if not self._console.is_terminal and number % max(1, self._rounds // 4) == 0:
            self._console.print(f"{self._title}: round {number}/{self._rounds}, {accuracy}")


def _mean(scores: Mapping[ClientId, Score]) -> float:
    known = [score.accuracy for score in scores.values() if math.isfinite(score.accuracy)]
    return fmean(known) if known else math.nan
