"""A run that is meant to last, with faults in every round: started, killed and measured by `test_soak.py`.

    python tests/fault_injection/soak_run.py FOLDER CLIENTS [a leak to plant: models, or files]

Every tenth client of a round drops out, every tenth is late, every fiftieth uploads NaN. After every few rounds a line
is added to `samples.jsonl`: what this process and its worker have computed, hold in memory, and hold open.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch

from fedfomo.algorithms.fedfomo import Download, FedFomo, Memory, Upload
from fedfomo.core.algorithm import Trained
from fedfomo.core.client import Client
from fedfomo.core.local_training import Sgd
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate

PLAN = SimulationConfig(
    rounds=10_000_000, evaluate_every=5, workers=1, vectorise=True, client_dropout=0.1, late_fraction=0.1
)
SPOILT = 0.02
EVERY = 5  # rounds a sample: as often as clients are scored, so that samples are alike


@dataclass(frozen=True)
class Spoiling(FedFomo):
    """FedFomo among clients whose uploads are at times not a number."""

    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        trained = super().train(client, download, memory)
        if float(torch.rand((), generator=client.random("spoils"))) >= SPOILT:
            return trained
        return replace(trained, upload=replace(trained.upload, model=torch.full_like(trained.upload.model, torch.nan)))


class Meter(Callback):
    """Takes samples of this process and its workers; and leaks, if it is told to."""

    def __init__(self, folder: Path, leak: str | None) -> None:
        self._folder = folder
        self._leak = leak
        self._leaked: list[torch.Tensor | IO[bytes]] = []

    def start(self, rounds_done: int) -> None:
        self._pids = [os.getpid(), *children()]

    def round_done(self, finished: FinishedRound) -> None:
        if self._leak == "models":
            self._leaked.append(torch.ones(100, 1203))
        elif self._leak == "files":
            self._leaked.append((self._folder / "rounds.jsonl").open("rb"))
        if (finished.round + 1) % EVERY == 0:
            kept = [path.stat() for part in ("tensors", "checkpoints") for path in (self._folder / part).iterdir()]
            sample: dict[str, Any] = {
                "round": finished.round,
                "pids": self._pids,
                "seconds": time.monotonic(),
                "cpu": sum(map(cpu_seconds, self._pids)),
                "yardstick": yardstick(),
                "memory": [resident_bytes(pid) for pid in self._pids],
                "files": [len(os.listdir(f"/proc/{pid}/fd")) for pid in self._pids],
                "disk": sum(found.st_size for found in kept),
                "kept": len(kept),
            }
            with (self._folder / "samples.jsonl").open("a") as file:
                file.write(json.dumps(sample) + "\n")


def children() -> list[int]:
    """Return the processes that this one has started."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def cpu_seconds(pid: int) -> float:
    """Return how long a process has computed: on a machine that others use, the clock on the wall says little."""
    return time.clock_gettime(~pid << 3 | 2)  # how Linux spells clock_getcpuclockid


def yardstick() -> float:
    """Return what a fixed computation takes now: processor time, too, gets longer when others use the same caches."""
    began = time.process_time()
    values = torch.arange(200_000, dtype=torch.float32)
    for _ in range(10):
        values = (values * 1.0001).sin()
        json.loads(json.dumps(list(range(1000))))
    return time.process_time() - began


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, shared or not."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    from toy_problems import points_problem

    torch.set_num_threads(1)
    place, clients, planted = Path(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [None])[0]
    small = replace(points_problem(clients), trainer=Sgd(batch_size=5, epochs=1, learning_rate_decay=1.0))
    simulate(small, Spoiling(num_downloads=2), PLAN, RunDirectory(place, "soak", print), Meter(place, planted))
