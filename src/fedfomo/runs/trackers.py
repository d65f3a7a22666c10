"""Sending a run's course to the trackers that people keep; each is imported only when it is asked for.

The log of a run, `rounds.jsonl`, is always written: trackers receive a digest of the same lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from fedfomo.errors import InputError, unknown
from fedfomo.runs.metrics import percentile
from fedfomo.simulation.callbacks import Callback, FinishedRound

TRACKERS = ("tensorboard", "mlflow", "wandb")


class Tracker(Protocol):
    """Keeps figures by round."""

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Keep one round's figures."""
        ...

    def close(self) -> None:
        """Finish."""
        ...


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
    names: Sequence[str], folder: Path, config: Mapping[str, Any], tell: Callable[[str], None]
) -> Generator[Callback | None]:
    """Open the trackers that were asked for, for one run; one that fails is told no more, and no run ends for it."""
    trackers: dict[str, Tracker] = {}

    def give_up(name: str, error: Exception) -> None:
        trackers.pop(name, None)
        tell(f"{name} failed and is told no more, {folder / 'rounds.jsonl'} has everything: {error}")

    def each(act: Callable[[Tracker], None]) -> None:
        for name, tracker in [*trackers.items()]:
            try:
                act(tracker)
            except Exception as error:  # whatever a service or a network can do
                give_up(name, error)

    class Tracked(Callback):
        def round_done(self, finished: FinishedRound) -> None:
            each(lambda tracker: tracker.log(finished.round + 1, figures_of(finished.line)))

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


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """Digest a round's line of the log: means, and never the mean alone."""
    figures: dict[str, float] = {}
    for point in ("after_update", "after_training"):
        for figure in ("accuracy", "loss"):
            values = sorted(score[figure] for score in line[point].values() if score[figure] is not None)
            if values:
                tail = 0.1 if figure == "accuracy" else 0.9
                figures[f"{point}/{figure}/mean"] = fmean(values)
                figures[f"{point}/{figure}/worst"] = values[0] if figure == "accuracy" else values[-1]
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
        raise InputError(
            f"tracker {module} is not installed: pip install '.[{extra}]' in the clone of fedfomo"
        ) from None
