"""Measuring: everything is a ratio of things timed side by side in one run."""

from __future__ import annotations

import json
import multiprocessing
import platform
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import torch
from sklearn.datasets import load_digits

from fedfomo.core.data import ClientData, Examples
from fedfomo.simulation.callbacks import Callback, FinishedRound

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _multiply(size: int, repetitions: int, barrier: Barrier, answer: Connection) -> None:
    torch.set_num_threads(1)
    matrix = torch.randn(size, size)
    matrix @ matrix
    barrier.wait()
    took = median(seconds(lambda: matrix @ matrix) for _ in range(repetitions))
    answer.send_bytes(str(2 * size**3 / took).encode())


def gemm_peak(processes: int, size: int = 1024, repetitions: int = 150) -> float:
    """Return the floating-point operations a second that matrix products keep up in that many processes at once.

    A core that others share has lucky moments; what a round of many seconds is compared with is the usual one.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes)
    answers: list[Connection] = []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        context.Process(target=_multiply, args=(size, repetitions, barrier, theirs)).start()
        answers.append(ours)
    return sum(float(answer.recv_bytes()) for answer in answers)


def digits_clients(number: int) -> list[ClientData]:
    """Give every client 100 digits for training and validation, and 20 to be scored on, drawn with replacement."""
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    digits = Examples(inputs, torch.tensor(labels))
    return [_deal(digits, (80, 20, 20), client) for client in range(number)]


def gaussian_clients(number: int, size: int) -> list[ClientData]:
    """Give every client a batch of noise to train on, and a little to judge by."""
    rng = torch.Generator().manual_seed(0)
    noise = Examples(torch.randn(1000, size, generator=rng), torch.randint(10, (1000,), generator=rng))
    return [_deal(noise, (50, 20, 20), client) for client in range(number)]


def _deal(examples: Examples, sizes: tuple[int, int, int], client: int) -> ClientData:
    rng = torch.Generator().manual_seed(client)
    parts = [examples.take(torch.randint(len(examples), (size,), generator=rng)) for size in sizes]
    return ClientData(*parts)


class RoundTimer(Callback):
    """Notes when rounds end."""

    def __init__(self) -> None:
        self._ends: list[float] = []
        self._last = 0.0  # when anything was heard of last

    def start(self, rounds_done: int) -> None:
        """Note the beginning."""
        self._ends.append(time.perf_counter())

    def client_done(self, round: int, client: int) -> None:
        """Note the time: after the last round comes one more federated update."""
        self._last = time.perf_counter()

    def round_done(self, finished: FinishedRound) -> None:
        """Note the end of a round."""
        self._ends.append(time.perf_counter())

    @property
    def started(self) -> float:
        """When the first round began."""
        return self._ends[0]

    def total(self) -> float:
        """Return how long all rounds and the last federated update took."""
        return self._last - self._ends[0]

    def rounds(self) -> list[float]:
        """Return how long each round took."""
        return [after - before for before, after in zip(self._ends, self._ends[1:], strict=False)]


def report(name: str, figures: dict[str, Any]) -> None:
    """Print figures and keep them as JSON."""
    print(f"\n{name}")  # noqa: T201
    for key, value in figures.items():
        shown = f"{value:.4g}" if isinstance(value, float) else value
        print(f"  {key:<44}{shown}")  # noqa: T201
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "torch": torch.__version__, "processor": platform.machine()}
    content = {"benchmark": name, "command": "make bench", "machine": machine, **figures}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
