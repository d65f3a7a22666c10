"""Callbacks that show a run while it goes on: the progress bar, and the trackers that people keep.

A tracker is imported only when it is asked for. The log of a run, `rounds.jsonl`, is always written: trackers receive
figures of the same lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fedfomo.core.metrics import Score
from fedfomo.errors import InputError, unknown
from fedfomo.runs.records import percentile
from fedfomo.simulation.callbacks import Callback, FinishedRound

if TYPE_CHECKING:
    from fedfomo.core.client import ClientId


class RunBar(Callback):
    """Follows one run: a bar in a terminal, a line every now and then elsewhere."""

    def __init__(
        self, console: Console, title: str, rounds: int, cohort: int, clients: int, metric: str = "accuracy"
    ) -> None:
        self._console = console
        self._metric = metric
        self._title = title
        self._rounds = rounds
        self._cohort = cohort
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        # The last federated update visits every client once more.
        self._task = self._progress.add_task(title, total=rounds * cohort + clients, figures="")

    def __enter__(self) -> RunBar:
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._progress.stop()

    def start(self, rounds_done: int) -> None:
        if rounds_done:
            self._console.print(f"{self._title}: going on after round {rounds_done} of {self._rounds}")
        self._progress.update(self._task, completed=rounds_done * self._cohort)

    def client_done(self, round: int, client: ClientId) -> None:
        self._progress.advance(self._task)

    def round_done(self, finished: FinishedRound) -> None:
        """Show the metric of the clients that took part; who dropped out was not counted before."""
        number = finished.round + 1
        self._progress.update(self._task, completed=number * self._cohort)
        if not finished.after_update:
            return
        means = f"{self._metric} {_mean(finished.after_update):.3f}, trained {_mean(finished.after_training):.3f}"
        self._progress.update(self._task, figures=f"round {number}/{self._rounds}  {means}")
        if not self._console.is_terminal and number % max(1, self._rounds // 4) == 0:
            self._console.print(f"{self._title}: round {number}/{self._rounds}, {means}")


def _mean(scores: Mapping[ClientId, Score]) -> float:
    known = [score.metric for score in scores.values() if math.isfinite(score.metric)]
    return fmean(known) if known else math.nan


class Tracker(Protocol):
    """Keeps figures by round."""

    def log(self, round: int, figures: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def open_tracker(name: str, folder: Path, config: Mapping[str, Any]) -> Tracker:
    """Start tracking a run under the name of its folder."""
    makers: dict[str, Callable[[Path, Mapping[str, Any]], Tracker]] = {
        "tensorboard": _TensorBoard,
        "mlflow": _MLflow,
        "wandb": _WeightsAndBiases,
    }
    if name not in makers:
        raise unknown("tracker", name, makers)
    return makers[name](folder, config)


@contextmanager
def track_run(
    names: Sequence[str],
    folder: Path,
    config: Mapping[str, Any],
    tell: Callable[[str], None],
    metric: str = "accuracy",
) -> Generator[Callback | None]:
    """Open the trackers that were asked for, for one run. One that fails is left out from then on; the run goes on."""
    trackers: dict[str, Tracker] = {}

    def give_up(name: str, error: Exception) -> None:
        trackers.pop(name, None)
        tell(f"{name} failed and gets no more figures, {folder / 'rounds.jsonl'} has everything: {error}")

    def each(act: Callable[[Tracker], None]) -> None:
        for name, tracker in [*trackers.items()]:
            try:
                act(tracker)
            except Exception as error:  # whatever a service or a network can do
                give_up(name, error)

    class Tracked(Callback):
        def round_done(self, finished: FinishedRound) -> None:
            each(lambda tracker: tracker.log(finished.round + 1, figures_of(finished.line, metric)))

    try:
        for name in names:
            try:
                trackers[name] = open_tracker(name, folder, config)
            except InputError:  # it is not installed
                raise
            except Exception as error:
                give_up(name, error)
        yield Tracked() if trackers else None
    finally:
        each(lambda tracker: tracker.close())


def figures_of(line: Mapping[str, Any], metric: str = "accuracy") -> dict[str, float]:
    """Digest a round's line of the log: means, and never the mean alone."""
    figures: dict[str, float] = {}
    for point in ("after_update", "after_training"):
        scores = [Score.from_dict(score) for score in line[point].values()]
        named = {name: [s.metrics[name] for s in scores if name in s.metrics] for s in scores for name in s.metrics}
        for figure, of in {metric: [s.metric for s in scores], "loss": [s.loss for s in scores], **named}.items():
            values = sorted(value for value in of if not math.isnan(value))
            if values:
                tail = 0.9 if figure == "loss" else 0.1
                figures[f"{point}/{figure}/mean"] = fmean(values)
                figures[f"{point}/{figure}/worst"] = values[-1] if figure == "loss" else values[0]
                figures[f"{point}/{figure}/p{100 * tail:.0f}"] = percentile(values, tail)
    figures |= {f"traffic/{what}": float(amount) for what, amount in line["traffic"].items()}
    figures["clients/took_part"] = float(len(line["cohort"]) - len(line.get("dropped", ())))
    figures["clients/refused"] = float(len(line["refused"]))
    return {name: value for name, value in figures.items() if math.isfinite(value)}


class _TensorBoard:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        _import("tensorboard", "tensorboard")
        writer: Any = import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(log_dir=str(folder / "tensorboard"))
        self._writer.add_text("config", "\n".join(f"    {name} = {value}" for name, value in config.items()))

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)

    def close(self) -> None:
        self._writer.close()


class _MLflow:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        client: Any = _import("mlflow", "mlflow")
        self._mlflow = client
        client.set_experiment("fedfomo")
        client.start_run(run_name=folder.name)
        client.log_params({name: str(value) for name, value in config.items()})

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self._mlflow.log_metrics(dict(figures), step=round)

    def close(self) -> None:
        self._mlflow.end_run()


class _WeightsAndBiases:
    def __init__(self, folder: Path, config: Mapping[str, Any]) -> None:
        client: Any = _import("wandb", "wandb")
        self._run = client.init(project="fedfomo", name=folder.name, dir=str(folder), config=dict(config))

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=round)

    def close(self) -> None:
        self._run.finish()


def _import(module: str, extra: str) -> Any:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InputError(f"tracker {module} is not installed: pip install 'fedfomo[{extra}]'") from None
