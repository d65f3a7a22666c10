"""A whole run as `fedfomo run` plays it, with its folder: rounds with their checkpoints, and the ending."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from measure import RoundTimer, report
from sklearn.datasets import load_digits

from fedfomo.runs.config import ExperimentConfig, RunConfig
from fedfomo.runs.config_io import build
from fedfomo.runs.run import run_or_resume, start_run
from fedfomo.runs.setup import prepare

SIZES = (15, 100, 1000, 10_000)
ROUNDS = 4
EXAMPLES = 40  # of training and validation data a client
SET = "many-digits"


def write_data(folder: Path, clients: int) -> None:
    """Write a data set that is large enough: digits, drawn with replacement, with a little noise."""
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
    return {
        "milliseconds a client-round, with its checkpoint": 1000 * median(rounds[1:]) / clients,
        # The last federated update, in which every client takes part, and all that is written.
        "ending, in rounds": (ended - timer.started - in_rounds) / median(rounds[1:]),
        "of that, after the last federated update": (ended - timer.started - timer.total()) / median(rounds[1:]),
        "whole run against its rounds": (ended - timer.started) / in_rounds,
        "megabytes, coordinating process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "megabytes on disk": sum(file.stat().st_size for file in out.rglob("*")) / 1e6,
    }


def main(sizes: tuple[int, ...] = SIZES, repetitions: int = 3) -> None:
    """Measure every size in processes of its own."""
    figures: dict[str, float] = {}
    for size in sizes:
        runs: list[dict[str, float]] = []
        for _ in range(repetitions):
            with tempfile.TemporaryDirectory() as folder:
                write_data(Path(folder), size)
                command = [sys.executable, __file__, str(size), folder]
                answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603
                runs.append(json.loads(answer.splitlines()[-1]))
        figures |= {f"{name}, {size:,} clients": median(run[name] for run in runs) for name in runs[0]}
    report("whole_run", {**figures, "rounds": ROUNDS, "workers": os.cpu_count(), "repetitions": repetitions})


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(int(sys.argv[1]), Path(sys.argv[2]))))  # noqa: T201
    else:
        main()
