"""Runs of several processes, some of which are killed; and processes that want the same run."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from faults import Disk
from fedfomo.core.rng import numpy_stream
from fedfomo.runs.config import RunConfig
from fedfomo.simulation import executors
from killed_runs import KILLED, Alone, Ending, Running, config_of, run_to_end
from scorecard import Torture

CONFIG = config_of(rounds=3, clients=2, vectorise=False)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone") / "run", CONFIG)


def test_killed_in_any_process(torture: Torture, alone: Alone, in_memory: Path) -> None:
    """Steps are counted over the coordinator and two workers: whoever takes the n-th is killed."""
    moments = numpy_stream(0, "steps")
    workers, coordinators, faults = 0, 0, list[str]()
    points = sorted(moments.choice(range(10, len(alone.steps)), 60 if torture.is_full else 3, replace=False).tolist())
    for point in points:
        folder = in_memory / str(point)
        killed = run_to_end(folder, CONFIG, 2, Disk(folder, "kill", point).stand_between)
        is_worker = killed.error is not None and "died (exit code -9)" in killed.error
        workers, coordinators = workers + is_worker, coordinators + (killed.exit_code == KILLED)
        fault = alone.fault_in(folder, killed.finished, run_to_end(folder, CONFIG, workers=int(moments.integers(3))))
        faults += [fault] if fault else []
        shutil.rmtree(folder)
    landed = workers + coordinators
    torture.record(
        "01d",
        "A run that is killed loses nothing",
        "SIGKILL of whichever of coordinator and two workers takes the n-th step on disk",
        f"{landed - len(faults)} of {landed} ({workers} workers, {coordinators} coordinators):"
        " a lost worker ends the run with one line; same bits once resumed",
        not faults and landed == len(points) and (workers > 0 or not torture.is_full),
        faults=faults,
    )


def _workers_of(pid: int | None) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()] if children.exists() else []


def _state_of(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return None


def _is_alive(pid: int) -> bool:
    return _state_of(pid) not in (None, "Z")


def _stop_workers_and_kill(folder: Path, config: RunConfig, breaks: Callable[[], None]) -> list[int]:
    """Stop the workers at their work, kill the coordinator, and return who is left after a while."""
    running = Running(folder, config, 2, breaks)
    while not any(folder.glob("checkpoints/after-round-*.json")):
        time.sleep(0.005)
    workers = _workers_of(running.process.pid)
    assert len(workers) == 2
    for worker in workers:
        os.kill(worker, signal.SIGSTOP)
    assert running.kill().exit_code == KILLED
    return _alive_after(2, workers)


def _alive_after(seconds: float, processes: list[int]) -> list[int]:
    patience = time.monotonic() + seconds
    while any(map(_is_alive, processes)) and time.monotonic() < patience:
        time.sleep(0.01)
    return [process for process in processes if _is_alive(process)]


def test_workers_do_not_outlive_their_coordinator(torture: Torture, in_memory: Path) -> None:
    repetitions = torture.repetitions(20)
    long = config_of(rounds=1000, clients=4)  # it is stopped in its second round
    left: list[int] = []
    for n in range(repetitions):
        for worker in _stop_workers_and_kill(in_memory / str(n), long, lambda: None):
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGCONT)  # stopped before its first step, it looks for its parent only now
            left += _alive_after(20, [worker])
    torture.record(
        "01e",
        "No worker goes on writing for a coordinator that is gone",
        "two workers are stopped at their work, the coordinator is killed",
        f"{2 * repetitions - len(left)} of {2 * repetitions} workers gone, at once or with their first step",
        not left,
    )


def test_workers_that_nobody_ends_would_outlive_their_coordinator(in_memory: Path) -> None:
    config = config_of(rounds=25, clients=4)
    orphans = _stop_workers_and_kill(
        in_memory / "run", config, lambda: setattr(executors, "exit_with_parent", lambda parent: None)
    )
    assert len(orphans) == 2
    # Whoever resumes shares no file with them, in whatever groups the clients are ordered.
    resumed = Running(in_memory / "run", config, workers=0)
    for orphan in orphans:
        os.kill(orphan, signal.SIGCONT)
    alone = Alone(in_memory / "alone", config)
    ended = resumed.end()
    assert alone.fault_in(in_memory / "run", 1, ended) is None
    assert not _alive_after(20, orphans)


def test_two_that_resume_the_same_run(torture: Torture, alone: Alone, in_memory: Path) -> None:
    repetitions = torture.repetitions(20)
    moments = numpy_stream(0, "stops")
    refused, faults = 0, list[str]()

    def check(folder: Path, killed: Ending, *both: Ending) -> int:
        """Note what is wrong with how the two processes ended; return 1 if one of them was refused, else 0."""
        first, second = sorted(both, key=lambda ending: ending.exit_code or 0)
        is_refused = "in use by another process" in (second.error or "")
        if second.error and not is_refused:
            faults.append(second.error)
        fault = alone.fault_in(folder, killed.finished, first)
        faults.extend([fault] if fault else [])
        return is_refused

    def killed_halfway(folder: Path) -> Ending:
        killed = run_to_end(folder, CONFIG, first=Disk(folder, "kill", len(alone.steps) // 2).stand_between)
        assert killed.exit_code == KILLED
        return killed

    for n in range(repetitions):
        # The first is stopped at a step of its own, and goes on when the second has ended.
        killed = killed_halfway(folder := in_memory / f"stopped-{n}")
        stop = Disk(folder, "stop", int(moments.integers(4, len(alone.steps) // 3)))
        running = Running(folder, CONFIG, first=stop.stand_between)
        _wait_until_stopped(running)
        second = run_to_end(folder, CONFIG)
        os.kill(running.process.pid or 0, signal.SIGCONT)
        refused += check(folder, killed, running.end(), second)
    for n in range(repetitions):
        # Both start within some milliseconds, and either may have finished before the other begins.
        killed = killed_halfway(folder := in_memory / f"together-{n}")
        both = [Running(folder, CONFIG, first=partial(time.sleep, wait)) for wait in (0.0, 0.004 * (n % 20))]
        check(folder, killed, *[running.end() for running in both])
    torture.record(
        "01f",
        "A run is computed by one process at a time",
        "a second process resumes a run while the first is stopped at a step on disk, or at about the same time",
        f"{2 * repetitions - len(faults)} of {2 * repetitions}: same bits;"
        f" {refused} of {repetitions} that came while the first was stopped were refused in words",
        not faults and refused == repetitions,
        faults=faults,
    )


def _wait_until_stopped(running: Running) -> None:
    patience = time.monotonic() + 60
    while _state_of(running.process.pid or 0) != "T":
        assert running.process.is_alive(), "it ended before the step at which it is stopped"
        assert time.monotonic() < patience, "it came to no such step"
        time.sleep(0.005)
