"""Results as one tidy table: a row for every figure of every client, in every round of every run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from fedfomo.core.metrics import Score
from fedfomo.errors import InputError, require
from fedfomo.runs.config import label_of
from fedfomo.runs.config_io import load_toml
from fedfomo.runs.provenance import read_environment
from fedfomo.runs.records import read_record, read_rounds

COLUMNS = ("method", "seed", "client", "round", "point", "metric", "value")
POINTS = {"after_update": "updated", "after_training": "trained"}
"""`updated`: the model after the federated update; `trained`: after local training; `final`: at the end of the run."""

Row = tuple[str, int, str, int, str, str, float]


def runs_in(folder: Path) -> list[Path]:
    """Return the runs in a folder that have begun: itself, or those of a comparison or of `federate`."""
    require((folder / "config.toml").exists(), f"{folder} is not the folder of a run: it has no config.toml")
    parts = sorted(path.parent for path in folder.glob("*-seed-*/environment.json"))
    runs = [folder] if (folder / "environment.json").exists() else parts
    require(bool(runs), f"no run in {folder} has begun")
    return runs


def rows_of(folder: Path) -> Iterator[Row]:
    """Read all figures of the runs in a folder, finished or not, in the order of `COLUMNS`."""
    for run in runs_in(folder):
        yield from _rows_of_run(run)


def frame_of(folders: Sequence[Path]) -> Any:
    """Return all figures of several folders as a pandas DataFrame."""
    pandas = _import_pandas()
    return pandas.DataFrame([row for folder in folders for row in rows_of(folder)], columns=list(COLUMNS))


def _import_pandas() -> Any:
    """Import pandas, or say how to get it."""
    try:
        return import_module("pandas")
    except ModuleNotFoundError as error:
        if error.name != "pandas":
            raise
        raise InputError("a DataFrame takes pandas: pip install pandas; .csv files do without") from None


def _rows_of_run(run: Path) -> Iterator[Row]:
    config, environment = load_toml(run / "config.toml"), read_environment(run)
    method, seed = label_of(config["method"]), int(config["seed"])
    names: Sequence[str] = environment.get("names") or config.get("sites") or []
    measure = environment.get("metric") or config.get("metric", "accuracy")
    lines = read_rounds(run)
    for line in lines:
        for point, word in POINTS.items():
            scores = {int(client): Score.from_dict(score) for client, score in line[point].items()}
            for client, metric, value in _figures(scores, names, measure):
                yield method, seed, client, line["round"] + 1, word, metric, value
    if (run / "result.json").exists():
        for client, metric, value in _figures(read_record(run).after_update, names, measure):
            yield method, seed, client, len(lines), "final", metric, value


def _figures(scores: Mapping[int, Score], names: Sequence[str], measure: str) -> Iterator[tuple[str, str, float]]:
    for client, score in sorted(scores.items()):
        name = names[client] if names else str(client)
        known = {"loss": score.loss, **(score.metrics or {measure: score.metric})}
        for metric, value in known.items():
            if not math.isnan(value):
                yield name, metric, value
