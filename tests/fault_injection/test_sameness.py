"""The same run, whoever computes it, in whatever order, with however many threads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from faults import Disk
from fedfomo.algorithms import make_algorithm
from fedfomo.core.rng import numpy_stream
from fedfomo.runs import provenance
from fedfomo.runs import run as runs
from fedfomo.simulation import simulate as simulation
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.executors import Executor, make_executor
from fedfomo.simulation.scheduling import Batch, BatchResult
from fedfomo.simulation.simulate import simulate
from fedfomo.testing.toy_federation import digest_of
from killed_runs import KILLED, Alone, config_of, run_to_end
from scorecard import Torture
from toy_problems import points_problem

METHODS = ("fedfomo", "fedavg", "ditto", "ifca")
PROBLEM = points_problem(num_clients=20, sizes={3: (2, 1), 4: (0, 3), 5: (9, 0)})
SAME = "A result does not depend on who computes it"


class Shuffled:
    """An executor that takes batches, and returns them, in an order of its own."""

    def __init__(self, executor: Executor, seed: int) -> None:
        self._executor = executor
        self._rng = numpy_stream(seed, "shuffled")

    def run_batches(self, orders: Iterable[Batch]) -> Iterator[BatchResult]:
        reports = list(self._executor.run_batches(self._shuffle(list(orders))))
        return iter(self._shuffle(reports))

    def close(self) -> None:
        self._executor.close()

    def _shuffle(self, items: Sequence[Any]) -> list[Any]:
        return [items[int(n)] for n in self._rng.permutation(len(items))]


def _bits(method: str, stack: bool, workers: int = 0) -> str:
    plan = SimulationConfig(rounds=2, participation=0.9, workers=workers, vectorise=stack)
    return digest_of(simulate(PROBLEM, make_algorithm(method), plan))


def test_workers_order_and_repetition(torture: Torture, monkeypatch: pytest.MonkeyPatch) -> None:
    methods = METHODS if torture.is_full else METHODS[:1]
    workers_tried, repeats = (range(5), 5) if torture.is_full else ((0, 2), 1)
    found: dict[tuple[str, bool], list[str]] = {(method, stack): [] for method in methods for stack in (False, True)}
    for (method, stack), bits in found.items():
        bits += [_bits(method, stack, workers) for workers in workers_tried]
        bits += [_bits(method, stack) for _ in range(repeats)]
        for seed in range(repeats):
            with monkeypatch.context() as patch:
                patch.setattr(
                    simulation,
                    "make_executor",
                    lambda side, number, seed=seed: Shuffled(make_executor(side, number), seed),
                )
                bits.append(_bits(method, stack, workers=seed % 3))
    same = sum(bits.count(bits[0]) for bits in found.values())
    runs = sum(map(len, found.values()))
    torture.record(
        "04",
        SAME,
        f"{' and '.join(map(str, workers_tried))} workers, repetitions, and requests and answers in shuffled sequence;"
        f" {', '.join(methods)}; clients one by one and together",
        f"{same} of {runs} runs have the bits of the first of their kind",
        same == runs and len({bits[0] for bits in found.values()}) == len(found),
    )


THREADS = """
import sys
from contextlib import nullcontext
import torch
from fedfomo.algorithms import make_algorithm
from fedfomo.simulation import executors
from fedfomo.simulation import simulate
from fedfomo.testing.toy_federation import digest_of
from toy_problems import points_problem
from torch import nn


def wide():  # small networks are computed in one thread whatever is allowed
    return nn.Sequential(nn.Linear(2, 50_000), nn.ReLU(), nn.Linear(50_000, 3))


for argument in sys.argv[1:]:
    if argument == "free":
        simulate.one_torch_thread = executors.one_torch_thread = nullcontext
        continue
    torch.set_num_threads(int(argument))
    plan = simulate.SimulationConfig(rounds=1)
    print(digest_of(simulate.simulate(points_problem(3, build=wide), make_algorithm("fedfomo"), plan)))
    assert torch.get_num_threads() == int(argument)
"""


def _bits_with_threads(*arguments: int | str) -> list[str]:
    """Threads that were once started would hinder every fork of this process: another one starts them."""
    command = [sys.executable, "-c", THREADS, *map(str, arguments)]
    path = os.pathsep.join([str(Path(__file__).parent.parent), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True, capture_output=True, text=True)
    return ended.stdout.splitlines()


def test_threads(torture: Torture) -> None:
    threads = (1, 2, 3, 4) if torture.is_full else (1, 2)
    *pinned, with_one, with_two = _bits_with_threads(*threads, "free", 1, 2)
    torture.record(
        "04b",
        SAME,
        f"torch set to {', '.join(map(str, threads))} threads before the run",
        f"{pinned.count(pinned[0])} of {len(pinned)} the same: every run computes in one thread, and says so in"
        " environment.json (without that, one and two give different bits)",
        len(set(pinned)) == 1 and with_one != with_two,
    )


def _with_version(name: str) -> None:
    usual = runs.version
    runs.version = lambda library: "0.0" if library == name else usual(library)


def _with_instructions() -> None:
    provenance.instructions = lambda: "another kind"


def test_resumed_elsewhere(torture: Torture, in_memory: Path) -> None:
    config = config_of(rounds=3, clients=3)
    alone = Alone(in_memory / "alone", config)
    assert json.loads((in_memory / "alone" / "environment.json").read_bytes())["threads"] == 1
    point = next(n for n, step in enumerate(alone.steps) if step.file.startswith("checkpoints/after-round-00003"))
    elsewhere = {
        "torch": (partial(_with_version, "torch"), "another version of fedfomo or torch"),
        "fedfomo": (partial(_with_version, "fedfomo"), "another version of fedfomo or torch"),
        "processor": (_with_instructions, "begun on a processor that computes with"),
    }
    wrong: dict[str, str] = {}
    for name, (change, refusal) in elsewhere.items():
        folder = in_memory / "run"
        assert run_to_end(folder, config, first=Disk(folder, "kill", point).stand_between).exit_code == KILLED
        there = run_to_end(folder, config, first=change)
        if there.exit_code != 2 or refusal not in (there.error or ""):
            wrong[name] = f"not refused: {there}"
        if fault := alone.fault_in(folder, 2, run_to_end(folder, config)):
            wrong[name] = fault
        shutil.rmtree(folder)
    torture.record(
        "04c",
        "A run is gone on with only where its bits would be the same",
        "killed, and resumed with another version of torch or fedfomo, or on another kind of processor",
        f"{len(elsewhere) - len(wrong)} of {len(elsewhere)} refused in words; back where it was begun, same bits",
        not wrong,
        wrong=wrong,
    )
