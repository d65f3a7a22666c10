"""Worker processes: each reads files by itself, and none outlives a start that fails."""

import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from fedfomo.algorithms import make_algorithm
from fedfomo.core.data import ClientData
from fedfomo.core.given_data import as_examples
from fedfomo.core.lazy_data import LazyExamples
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult, simulate
from toy_problems import points_problem

NUMBER, WIDTH = 64, 20_000


class OneOpenFile(Dataset[Any]):
    """Keeps its file open, as an archive or an HDF5 file is kept; every example is its own number again and again."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("rb", buffering=0)

    def __len__(self) -> int:
        return NUMBER

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.file.seek(4 * WIDTH * index)
        time.sleep(1e-4)  # whoever shares the position takes it elsewhere
        values = np.frombuffer(self.file.read(4 * WIDTH), dtype=np.int32)
        if not (len(values) == WIDTH and (values == index).all()):
            raise RuntimeError(f"this is not example {index}")
        return torch.full((4,), index / NUMBER), index % 2


@pytest.fixture
def data(tmp_path: Path) -> Iterator[OneOpenFile]:
    path = tmp_path / "examples"
    path.write_bytes(np.repeat(np.arange(NUMBER, dtype=np.int32), WIDTH).tobytes())
    found = OneOpenFile(path)
    yield found
    found.file.close()


def run(data: Dataset[Any], workers: int) -> RunResult:
    part = as_examples(data)
    torch.manual_seed(0)
    model = Model(nn.Linear(4, 2))
    problem = FederatedProblem(model, model.read(), [ClientData(part, part, part)] * 4, Sgd(epochs=1), seed=0)
    return simulate(problem, make_algorithm("fedavg", {}), SimulationConfig(rounds=2, workers=workers))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_a_file_that_a_data_set_keeps_open_is_read_by_every_worker_from_its_own_place(data: OneOpenFile) -> None:
    place = data.file.seek(123)
    many = run(data, workers=4)
    assert data.file.tell() == place
    assert many.after_update == run(data, workers=0).after_update


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_processes_that_read_ahead_have_places_of_their_own_too(data: OneOpenFile) -> None:
    part = LazyExamples(data, num_workers=2)
    for _ in range(3):
        found = torch.cat([batch.inputs[:, 0] for batch in part.batches(2)])
        assert found.tolist() == [n / NUMBER for n in range(NUMBER)]


def test_when_a_worker_cannot_start_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = ForkProcess.start, list[ForkProcess]()

    def third_fails(process: ForkProcess) -> None:
        if len(started) == 2:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(process)
        start(process)

    monkeypatch.setattr(ForkProcess, "start", third_fails)
    before = set(multiprocessing.active_children())
    try:
        with pytest.raises(BlockingIOError):
            simulate(points_problem(), make_algorithm("fedavg", {}), SimulationConfig(rounds=1, workers=4))
        assert set(multiprocessing.active_children()) == before
    finally:
        for process in set(multiprocessing.active_children()) - before:
            process.kill()
