"""Runs that are killed, at every step that they take on disk and at any other time."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from faults import Disk, How
from fedfomo.config import RunConfig
from fedfomo.randomness import numpy_stream
from fedfomo.simulation import checkpoint, crew, home, tensors
from fedfomo.simulation.checkpoint import Checkpoints
from fedfomo.simulation.home import RunHome
from fedfomo.simulation.tensors import TensorFiles
from killed_runs import KILLED, Alone, Running, config_of, play
from scorecard import Torture

CONFIG = config_of(rounds=3, clients=2, stack=False)
MORE = config_of(rounds=5, clients=4)
SAME = "A run that is killed loses nothing"
Break = Callable[[], None]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone") / "run", CONFIG)


def _points(alone: Alone, torture: Torture, *hows: How) -> list[tuple[How, int]]:
    """List every step of the run, for each way to end there; a tenth of them in the quick form."""
    points = [(how, n) for how in hows for n, step in enumerate(alone.steps) if how != "tear" or step.kind == "write"]
    return points if torture.is_full else points[7::14]


def _killed_at(point: tuple[How, int], alone: Alone, folder: Path, breaks: Break | None = None) -> str | None:
    """Kill a run at a step, resume it, and say what came of that; the same code, broken or not, does both."""
    disk = Disk(folder, *point)

    def first() -> None:
        if breaks:
            breaks()
        disk.stand_between()

    killed = play(folder, CONFIG, first=first)
    if killed.exit_code != KILLED:
        return "the kill did not land"
    fault = alone.fault_in(folder, killed.finished, play(folder, CONFIG, first=breaks or (lambda: None)))
    shutil.rmtree(folder)
    return fault


def test_killed_at_every_step(torture: Torture, alone: Alone, in_memory: Path) -> None:
    points = _points(alone, torture, "kill", "tear")
    faults = {str(point): fault for point in points if (fault := _killed_at(point, alone, in_memory / "run"))}
    kinds = ", ".join(f"{number} × {kind}" for kind, number in Counter(step.kind for step in alone.steps).items())
    torture.record(
        "01",
        SAME,
        f"SIGKILL before every step on disk and in the middle of every write of a run ({kinds}); then resumed",
        f"{len(points) - len(faults)} of {len(points)}: same bits, no finished round played again, no file left over",
        not faults,
        faults=faults,
    )


def test_power_cut_at_every_step(torture: Torture, alone: Alone, in_memory: Path) -> None:
    points = _points(alone, torture, "power cut")
    faults = {str(point): fault for point in points if (fault := _killed_at(point, alone, in_memory / "run"))}
    torture.record(
        "01b",
        "A power cut loses nothing",
        "the same, and all that was not synced is lost: bytes, and new names in a folder (simulated)",
        f"{len(points) - len(faults)} of {len(points)}: same bits, no finished round played again",
        not faults,
        faults=faults,
    )


def _clear_too_early() -> None:
    save, clear = Checkpoints.save, TensorFiles.delete_all_but

    def too_early(self: Checkpoints, after: checkpoint.Checkpoint) -> None:
        clear(TensorFiles(self._tensors, durable=True), after.files())
        save(self, after)

    Checkpoints.save = too_early


def _write_in_place() -> None:
    """One manifest for all rounds, written over the last."""
    Checkpoints._path = lambda self, rounds_done: self._folder / "after-round-00000.json"
    checkpoint.write_atomically = lambda path, *content: path.write_bytes(b"".join(content))


def _never_cut_the_log() -> None:
    RunHome.cut_log = lambda self, length: None


def _leave_everything() -> None:
    home.delete_unfinished = lambda folder: None


def _never_sync() -> None:
    tensors.os = type("os", (), {**vars(os), "fsync": staticmethod(lambda fd: None)})


@pytest.mark.parametrize(
    ("breaks", "how", "kind", "file"),
    [
        (_clear_too_early, "kill", "open", "checkpoints/after-round-00002"),
        (_write_in_place, "tear", "write", "checkpoints/after-round"),
        (_never_cut_the_log, "kill", "open", "checkpoints/after-round-00002"),
        (_leave_everything, "tear", "write", "affinity/after-round-00002"),
        (_never_sync, "power cut", "open", "checkpoints/after-round-00002"),
    ],
)
def test_a_protocol_with_a_flaw_does_not_pass(
    breaks: Break, how: How, kind: str, file: str, alone: Alone, in_memory: Path
) -> None:
    disk = Disk(in_memory / "whole")

    def first() -> None:
        breaks()
        disk.stand_between()

    play(in_memory / "whole", CONFIG, first=first)
    point = [n for n, step in enumerate(disk.steps) if step.kind == kind and step.file.startswith(file)][-1]
    assert _killed_at((how, point), alone, in_memory / "run", breaks) not in (None, "the kill did not land")


def test_without_the_kill_nothing_has_landed(alone: Alone, in_memory: Path) -> None:
    assert _killed_at(("kill", len(alone.steps)), alone, in_memory / "run") == "the kill did not land"


def test_killed_at_any_time(torture: Torture, in_memory: Path) -> None:
    moments = numpy_stream(0, "moments")
    alone = Alone(in_memory / "alone", MORE)
    wanted, landed, again, faults = torture.repetitions(100), 0, 0, list[str]()
    for trial in range(3 * wanted):
        folder = in_memory / str(trial)
        killed = Running(folder, MORE, workers=trial % 3).kill(moments.uniform(0, alone.ending.seconds))
        if killed.exit_code != KILLED:
            continue  # it was faster
        landed, finished = landed + 1, killed.finished
        resumed = Running(folder, MORE, workers=int(moments.integers(3))).kill(
            moments.uniform(0, alone.ending.seconds) if trial % 2 else 60
        )
        if resumed.exit_code == KILLED:
            again += 1
            finished = max(killed.finished, resumed.finished)
            resumed = play(folder, MORE, workers=int(moments.integers(3)))
        fault = alone.fault_in(folder, finished, resumed)
        faults += [fault] if fault else []
        shutil.rmtree(folder)
        if landed == wanted:
            break
    torture.record(
        "01c",
        SAME,
        "SIGKILL at moments drawn at random, with 0, 1 or 2 workers; half of the resumed runs are killed again",
        f"{landed - len(faults)} of {landed} ({again} of them killed twice): same bits, at most one round redone",
        not faults and landed == wanted,
        faults=faults,
    )


def test_killed_in_any_process(torture: Torture, alone: Alone, in_memory: Path) -> None:
    """Steps are counted over the coordinator and two workers: whoever takes the n-th is killed."""
    moments = numpy_stream(0, "steps")
    workers, coordinators, faults = 0, 0, list[str]()
    points = sorted(moments.choice(range(10, len(alone.steps)), torture.repetitions(60), replace=False).tolist())
    for point in points:
        folder = in_memory / str(point)
        killed = play(folder, CONFIG, 2, Disk(folder, "kill", point).stand_between)
        is_worker = killed.error is not None and "died (exit code -9)" in killed.error
        workers, coordinators = workers + is_worker, coordinators + (killed.exit_code == KILLED)
        fault = alone.fault_in(folder, killed.finished, play(folder, CONFIG, workers=int(moments.integers(3))))
        faults += [fault] if fault else []
        shutil.rmtree(folder)
    landed = workers + coordinators
    torture.record(
        "01d",
        SAME,
        "SIGKILL of whichever of coordinator and two workers takes the n-th step on disk",
        f"{landed - len(faults)} of {landed} ({workers} workers, {coordinators} coordinators):"
        " a lost worker ends the run with one line; same bits once resumed",
        not faults and landed == len(points) and (workers > 0 or not torture.is_full),
        faults=faults,
    )


def _workers_of(pid: int | None) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in children.read_text().split()] if children.exists() else []


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _stop_workers_and_kill(folder: Path, config: RunConfig, breaks: Break) -> list[int]:
    """Stop the workers at their work, kill the coordinator, and return who is left after a while."""
    running = Running(folder, config, 2, breaks)
    while not (folder / "rounds.jsonl").exists():
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
    left = [pid for n in range(repetitions) for pid in _stop_workers_and_kill(in_memory / str(n), long, lambda: None)]
    torture.record(
        "01e",
        "No worker goes on writing for a coordinator that is gone",
        "two workers are stopped at their work, the coordinator is killed",
        f"{2 * repetitions - len(left)} of {2 * repetitions} workers gone within 2 s",
        not left,
    )


def test_workers_that_nobody_ends_would_outlive_their_coordinator(in_memory: Path) -> None:
    config = config_of(rounds=25, clients=4)
    orphans = _stop_workers_and_kill(in_memory / "run", config, lambda: setattr(crew, "die_with", lambda parent: None))
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
    refused, faults = 0, list[str]()
    repetitions = torture.repetitions(20)
    for n in range(repetitions):
        folder = in_memory / str(n)
        killed = play(folder, CONFIG, first=Disk(folder, "kill", len(alone.steps) // 2).stand_between)
        assert killed.exit_code == KILLED
        both = [Running(folder, CONFIG, first=partial(time.sleep, wait)) for wait in (0.0, 0.004 * n)]
        endings = sorted((running.end() for running in both), key=lambda ending: ending.exit_code or 0)
        refused += "in use by another process" in (endings[1].error or "")
        if endings[1].error and "in use by another process" not in endings[1].error:
            faults.append(endings[1].error)
        fault = alone.fault_in(folder, killed.finished, endings[0])
        faults += [fault] if fault else []
    torture.record(
        "01f",
        "A run is played by one process at a time",
        "two processes resume the same run at about the same time",
        f"{repetitions - len(faults)} of {repetitions}: same bits; {refused} times the second was refused in words,"
        " else the first had finished",
        not faults and refused > 0,
        faults=faults,
    )
