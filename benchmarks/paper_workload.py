"""The paper's workload: clients of 1,000 CIFAR-shaped images, its CNN, five epochs, five downloads.

Six of its fifteen clients: what a client does is the same. The bare engine, `fedfomo run` with its folder, the same in
bfloat16, and a loop as it is usually written take turns, and the peak is measured between the engine's rounds.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from measure import RoundTimer, measure_peak, ratios, report, seconds, spread
from reference import ReferenceLoop

from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.core.device import bfloat16_instructions
from fedfomo.core.networks import small_cnn
from fedfomo.io import read_lines
from fedfomo.runs.config import ExperimentConfig, RunConfig
from fedfomo.runs.config_io import build
from fedfomo.runs.run import run_or_resume, start_run
from fedfomo.runs.setup import Prepared, prepare
from fedfomo.simulation.callbacks import FinishedRound
from fedfomo.simulation.simulate import simulate

CLIENTS, TRAIN, VALIDATION, TEST = 6, 800, 200, 200
EPOCHS, BATCH, DOWNLOADS, ROUNDS = 5, 50, 5, 2
SET = "coloured-noise"
# Multiply-adds of one image: two floating-point operations each. What the network leaves out is not counted.
FORWARD = 2 * (28 * 28 * 32 * 27 + 12 * 12 * 64 * 288 + 4 * 4 * 64 * 576 + 1024 * 64 + 64 * 10)
# Going back costs the weights' gradient and the inputs', of which the first layer needs none.
TRAINING = 3 * FORWARD - 2 * 28 * 28 * 32 * 27
OPERATIONS = CLIENTS * (EPOCHS * TRAIN * TRAINING + (DOWNLOADS + 2) * VALIDATION * FORWARD + 2 * TEST * FORWARD)


class PeakBetweenRounds(RoundTimer):
    """Measures the peak whenever a round has ended; that time counts to no round."""

    def __init__(self, cores: int) -> None:
        super().__init__()
        self.peaks: list[dict[str, float]] = []
        self._cores = cores

    def round_done(self, finished: FinishedRound) -> None:
        """Note the end of a round, and measure."""
        super().round_done(finished)
        self.pause(lambda: self.peaks.append(measure_peak(self._cores)))


def write_data(folder: Path) -> None:
    """Write images that are learnable: noise around one pattern per class."""
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(10, 32, 32, 3))

    def some(number: int) -> tuple[np.ndarray, np.ndarray]:
        labels = rng.integers(10, size=number)
        noisy = 128 + 40 * (patterns[labels] + rng.normal(size=(number, 32, 32, 3)))
        return noisy.clip(0, 255).astype(np.uint8), labels.astype(np.uint8)

    (x_train, y_train), (x_test, y_test) = some(CLIENTS * (TRAIN + VALIDATION)), some(CLIENTS * TEST)
    np.savez(folder / f"{SET}.npz", x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)


def configure(folder: Path, precision: str) -> tuple[RunConfig, Prepared]:
    """Return the run as `fedfomo run` would have it."""
    values = {"dataset": SET, "data": str(folder), "scenario": "iid", "clients": CLIENTS, "rounds": ROUNDS}
    values |= {"network": "small_cnn", "epochs": EPOCHS, "batch_size": BATCH, "precision": precision}
    setting = build(ExperimentConfig, values)
    return RunConfig("fedfomo", {"num_downloads": DOWNLOADS}, 0, None, setting), prepare(setting, 0)


def run_in_folder(config: RunConfig, prepared: Prepared) -> dict[str, float]:
    """Play a run with its folder, and return what a round, the whole and scoring took."""
    with tempfile.TemporaryDirectory() as place:
        out, timer = Path(place), RoundTimer()
        start_run(config, out, prepared)
        run_or_resume(out, prepared, timer, print)
        ended, rounds = time.perf_counter(), timer.rounds()
        spent = read_lines(out / "seconds.jsonl")[1:]
        return {
            "round": mean(rounds[1:]),  # the first round has nothing to download
            "ending": (ended - timer.started - sum(rounds)) / mean(rounds[1:]),
            "scoring": sum(line["scoring"] for line in spent) / sum(line["all"] for line in spent),
        }


def main(repetitions: int = 3) -> None:
    """Measure everything in turn, several times."""
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder))
        config, prepared = configure(Path(folder), "float32")
        rounded = configure(Path(folder), "bf16") if bfloat16_instructions() else None
    data = prepared.problem.clients
    assert {(len(own.train), len(own.validation), len(own.test)) for own in data} == {(TRAIN, VALIDATION, TEST)}  # noqa: S101
    loops = {
        (threads, last): ReferenceLoop(small_cnn((3, 32, 32), 10), data, BATCH, EPOCHS, DOWNLOADS, channels_last=last)
        for threads in sorted({1, cores})
        for last in (False, True)
    }
    reference: dict[tuple[int, bool], list[float]] = {loop: [] for loop in loops}
    bare, peaks, in_folder, in_bf16 = list[float](), list[dict[str, float]](), list[dict[str, float]](), list[float]()
    for _ in range(repetitions):
        timer = PeakBetweenRounds(cores)
        simulate(prepared.problem, FedFomo(num_downloads=DOWNLOADS), prepared.simulation, callback=timer)
        bare.append(mean(timer.rounds()[1:]))
        peaks.append({kind: mean(one[kind] for one in timer.peaks) for kind in timer.peaks[0]})
        in_folder.append(run_in_folder(config, prepared))
        if rounded is not None:
            in_bf16.append(run_in_folder(*rounded)["round"])
        for loop, times in reference.items():
            torch.set_num_threads(loop[0])
            times.append(CLIENTS * seconds(lambda loop=loop: loops[loop].run_round(clients=1)))
        torch.set_num_threads(1)
    rounds = [one["round"] for one in in_folder]
    best = max(peaks[0], key=lambda kind: median(peak[kind] for peak in peaks))
    usual = min((loop for loop in reference if not loop[1]), key=lambda loop: median(reference[loop]))
    report(
        "paper_workload",
        {
            "seconds a round, bare engine": spread(bare),
            f"peak, billion operations a second ({best})": spread([peak[best] / 1e9 for peak in peaks]),
            **{
                f"peak by {kind}, against that": ratios([p[kind] for p in peaks], [p[best] for p in peaks])
                for kind in peaks[0]
                if kind != best
            },
            "share of the peak": spread([OPERATIONS / took / p[best] for took, p in zip(bare, peaks, strict=True)]),
            **{
                f"times faster than the loop, {_described(loop)}": ratios(times, bare)
                for loop, times in reference.items()
            },
            "best loop without channels last": _described(usual),
            "that loop, channels last: gain": ratios(reference[usual], reference[usual[0], True]),
            "fedfomo run with its folder, against the bare engine": ratios(rounds, bare),
            "ending of the run, in rounds": spread([one["ending"] for one in in_folder]),
            "scoring, share of workers' time": spread([one["scoring"] for one in in_folder]),
            **({"bf16: times faster than float32": ratios(rounds, in_bf16)} if in_bf16 else {}),
            "instructions for bfloat16": bfloat16_instructions() or "none",
            "workers": cores,
            "clients": CLIENTS,
            "repetitions": repetitions,
        },
    )


def _described(loop: tuple[int, bool]) -> str:
    threads, is_last = loop
    return f"{threads} thread{'s' * (threads > 1)}{', channels last' * is_last}"


if __name__ == "__main__":
    main()
