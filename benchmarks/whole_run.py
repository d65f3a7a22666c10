"""A whole run as `fedfomo run` plays it, with its folder: rounds with their checkpoints, and the ending."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measure import RoundTimer, report, seconds, spread

from fedfomo.runs.config import ExperimentConfig, RunConfig
from fedfomo.runs.config_io import build
from fedfomo.runs.run import run_or_resume, start_run
from fedfomo.runs.setup import prepare

ROUNDS = 4
MOST_REPORTED = 1000  # clients of the largest report that is timed
REPETITIONS = {15: 3, 1000: 3, 10_000: 3}
EXAMPLES = 40  # of training and validation data a client
SET = "many-digits"


def write_data(folder: Path, clients: int) -> None:
    """Write a data set that is large enough: digits, drawn with replacement, with a little noise."""
    from sklearn.datasets import load_digits  # a hundred megabytes, which runs should not have

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)

    def some(number: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = rng.integers(len(images), size=number)
        noisy = 15 * images[chosen] + rng.integers(16, size=(number, 64))
        return noisy.astype(np.uint8).reshape(number, 8, 8), labels[chosen].astype(np.uint8)

    (x_train, y_train), (x_test, y_test) = some(EXAMPLES * clients), some(10 * clients)
    np.savez(folder / f"{SET}.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def measure(clients: int, folder: Path) -> dict[str, float]:
    """Run FedFomo in a folder, and say what rounds and ending took."""
    values = {"dataset": SET, "data": str(folder), "clients": clients, "scenario": "iid", "rounds": ROUNDS}
    setting = build(ExperimentConfig, values)
    prepared = prepare(setting, seed=0)
    out, timer = folder / "run", RoundTimer()
    out.mkdir()
    start_run(RunConfig("fedfomo", {}, 0, None, setting), out, prepared)
    run_or_resume(out, prepared, timer, print)
    ended, rounds = time.perf_counter(), timer.rounds()
    in_rounds = sum(rounds)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # before the report
    return {
        "milliseconds a client-round, with its checkpoint": 1000 * median(rounds[1:]) / clients,
        # The last federated update, in which every client takes part, and all that is written.
        "ending, in rounds": (ended - timer.started - in_rounds) / median(rounds[1:]),
        "of that, after the last federated update": (ended - timer.started - timer.total()) / median(rounds[1:]),
        "whole run against its rounds": (ended - timer.started) / in_rounds,
        "megabytes, coordinating process": used,
        "megabytes on disk": sum(file.stat().st_size for file in out.rglob("*")) / 1e6,
        **({"seconds, report": seconds(lambda: report_on(out))} if clients <= MOST_REPORTED else {}),
    }


def report_on(folder: Path) -> None:
    """Write the report of a run, as `fedfomo report` does."""
    command = [sys.executable, "-m", "fedfomo", "report", str(folder)]
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603


def main(repetitions: Mapping[int, int] = REPETITIONS) -> None:
    """Measure every size in processes of its own."""
    figures: dict[str, Any] = {}
    runs: dict[int, list[dict[str, float]]] = {size: [] for size in repetitions}
    for size, number in repetitions.items():
        for _ in range(number):
            with tempfile.TemporaryDirectory() as folder:
                write_data(Path(folder), size)
                command = [sys.executable, __file__, str(size), folder]
                answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
                runs[size].append(json.loads(answer.splitlines()[-1]))
        found = runs[size]
        figures |= {f"{name}, {size:,} clients": spread([run[name] for run in found]) for name in found[0]}
    if {15, 1000} <= runs.keys():
        pairs = zip(runs[1000], runs[15], strict=True)
        further = [many["seconds, report"] - few["seconds, report"] for many, few in pairs]
        figures["seconds that a report takes longer, 1,000 clients against 15"] = spread(further)
    report("whole_run", {**figures, "rounds": ROUNDS, "workers": os.cpu_count(), "repetitions": str(repetitions)})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), Path(sys.argv[2]))))  # noqa: T201
    else:
        main()
