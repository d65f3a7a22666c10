"""Measuring: everything is a ratio of things timed side by side in one run."""

from __future__ import annotations

import json
import multiprocessing
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from fedfomo.core.data import ClientData, Examples
from fedfomo.core.determinism import processor
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.process_utils import use_huge_pages

RESULTS = Path(__file__).parent.parent / "results" / "benchmarks"


def seconds(work: Callable[[], object]) -> float:
    """Time one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the processor time of one call: of what computes in one thread, whatever else runs beside it."""
    started = time.process_time()
    work()
    return time.process_time() - started


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median of repetitions, and the lowest and the highest; of many, those without a tenth at each end."""
    tenth = len(values) // 10
    kept = sorted(values)[tenth : len(values) - tenth]
    return {"median": median(values), "lowest": kept[0], "highest": kept[-1]}


def ratios(dividends: Sequence[float], divisors: Sequence[float]) -> dict[str, float]:
    """Return the spread of ratios of what was timed in the same repetition."""
    return spread([one / other for one, other in zip(dividends, divisors, strict=True)])


def in_turn(contenders: Mapping[str, Callable[[], object]], repetitions: int) -> dict[str, list[float]]:
    """Measure every contender's processor time once a repetition, after one call that is not counted."""
    for work in contenders.values():
        work()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, work in contenders.items():
            times[name].append(processor_seconds(work))
    return times


_SIZE = 1024  # of the matrices
_BATCH, _SIDE = 50, 14  # of the convolution: the second of the paper's network, which has most of its work


def _peak_contenders() -> dict[str, tuple[Callable[[], object], float]]:
    """Return what may set the peak, each with its floating-point operations: products by two libraries, a layer."""
    ours, theirs = torch.randn(_SIZE, _SIZE), np.random.default_rng(0).random((_SIZE, _SIZE), dtype=np.float32)
    layer = torch.nn.Conv2d(32, 64, 3).to(memory_format=torch.channels_last)
    images = torch.randn(_BATCH, 32, _SIDE, _SIDE).contiguous(memory_format=torch.channels_last)
    return {
        "torch": (lambda: ours @ ours, 2 * _SIZE**3),
        "OpenBLAS": (lambda: theirs @ theirs, 2 * _SIZE**3),
        "convolution": (lambda: layer(images), 2 * _BATCH * (_SIDE - 2) ** 2 * 64 * 32 * 9),
    }


def _measure_peak(lasting: float, barrier: Barrier, answer: Connection) -> None:
    torch.set_num_threads(1)
    use_huge_pages()
    found: dict[str, float] = {}
    with threadpool_limits(1), torch.no_grad():
        for name, (work, operations) in _peak_contenders().items():
            work()
            barrier.wait()
            calls, started = 0, time.perf_counter()
            while (took := time.perf_counter() - started) < lasting:
                work()
                calls += 1
            found[name] = calls * operations / took
    answer.send_bytes(json.dumps(found).encode())


def measure_peak(processes: int, lasting: float = 0.5) -> dict[str, float]:
    """Return the floating-point operations a second that so many processes keep up at once, by what they compute.

    A core that others share has lucky moments; what a round of many seconds is compared with is what a while brings.
    """
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes)
    answers: list[Connection] = []
    for _ in range(processes):
        ours, theirs = context.Pipe()
        context.Process(target=_measure_peak, args=(lasting, barrier, theirs)).start()
        answers.append(ours)
    found: list[dict[str, float]] = [json.loads(answer.recv_bytes()) for answer in answers]
    return {name: sum(one[name] for one in found) for name in found[0]}


def digits_clients(number: int) -> list[ClientData]:
    """Give every client 100 digits for training and validation, and 20 to be scored on, drawn with replacement."""
    from sklearn.datasets import load_digits  # a hundred megabytes, which others should not have

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
        self._paused: dict[int, float] = {}  # seconds, by how many rounds were done

    def start(self, rounds_done: int) -> None:
        """Note the beginning."""
        self._ends.append(time.perf_counter())

    def client_done(self, round: int, client: int) -> None:
        """Note the time: after the last round comes one more federated update."""
        self._last = time.perf_counter()

    def round_done(self, finished: FinishedRound) -> None:
        """Note the end of a round."""
        self._ends.append(time.perf_counter())

    def pause(self, work: Callable[[], object]) -> None:
        """Do something between two rounds that counts to neither."""
        took = seconds(work)
        self._paused[len(self._ends) - 1] = self._paused.get(len(self._ends) - 1, 0.0) + took

    @property
    def started(self) -> float:
        """When the first round began."""
        return self._ends[0]

    def total(self) -> float:
        """Return how long all rounds and the last federated update took."""
        return self._last - self._ends[0]

    def rounds(self) -> list[float]:
        """Return how long each round took."""
        pairs = enumerate(zip(self._ends, self._ends[1:], strict=False))
        return [after - before - self._paused.get(number, 0.0) for number, (before, after) in pairs]


def report(name: str, figures: dict[str, Any], command: str = "make bench") -> None:
    """Print figures and keep them as JSON."""
    print(f"\n{name}", flush=True)  # noqa: T201
    for key, value in figures.items():
        print(f"  {key:<70}{_shown(value)}", flush=True)  # noqa: T201
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "torch": torch.__version__, "processor": processor()}
    content = {"benchmark": name, "command": command, "machine": machine, **figures}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"{value['median']:.4g} ({value['lowest']:.4g} to {value['highest']:.4g})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
