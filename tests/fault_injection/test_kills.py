"""Runs that are killed, at every step that they take on disk and at any other time."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from faults import Disk, How
from fedfomo import io
from fedfomo.core.rng import numpy_stream
from fedfomo.engine import checkpoint, run_dir
from fedfomo.engine.checkpoint import Checkpoints
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.engine.tensor_store import TensorStore
from killed_runs import KILLED, Alone, Running, config_of, run_to_end
from scorecard import Torture

CONFIG = config_of(rounds=3, clients=2, vectorise=False)
MORE = config_of(rounds=5, clients=4)
SAME = "A run that is killed loses nothing"
Break = Callable[[], None]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone") / "run", CONFIG)


def _points(alone: Alone, torture: Torture, *hows: How) -> list[tuple[How, int]]:
    """List every step of the run, for each way to end there; a tenth of them in the quick form."""
    points = [(how, n) for how in hows for n, step in enumerate(alone.steps) if how != "tear" or step.kind == "write"]
    return points if torture.is_full else points[7::10]


def _killed_at(point: tuple[How, int], alone: Alone, folder: Path, breaks: Break | None = None) -> str | None:
    """Kill a run at a step, resume it, and say what came of that; the same code, broken or not, does both."""
    disk = Disk(folder, *point)

    def first() -> None:
        if breaks:
            breaks()
        disk.stand_between()

    killed = run_to_end(folder, CONFIG, first=first)
    if killed.exit_code != KILLED:
        return "the kill did not land"
    fault = alone.fault_in(folder, killed.finished, run_to_end(folder, CONFIG, first=breaks or (lambda: None)))
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
        f"{len(points) - len(faults)} of {len(points)}: same bits, no finished round run again, no file left over",
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
        f"{len(points) - len(faults)} of {len(points)}: same bits, no finished round run again",
        not faults,
        faults=faults,
    )


def _clear_too_early() -> None:
    save, clear = Checkpoints.save, TensorStore.delete_all_but

    def too_early(self: Checkpoints, after: checkpoint.Checkpoint) -> None:
        clear(TensorStore(self._tensors, durable=True), after.files())
        save(self, after)

    Checkpoints.save = too_early


def _write_in_place() -> None:
    """One manifest for all rounds, written over the last."""
    Checkpoints._path = lambda self, rounds_done: self._folder / "after-round-00000.json"
    checkpoint.write_atomically = lambda path, *content: path.write_bytes(b"".join(content))


def _never_cut_the_log() -> None:
    RunDirectory.truncate_log = lambda self, length: None


def _leave_everything() -> None:
    run_dir.delete_unfinished = lambda folder: None


def _never_sync() -> None:
    io.os = type("os", (), {**vars(os), "fsync": staticmethod(lambda fd: None)})


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

    run_to_end(in_memory / "whole", CONFIG, first=first)
    point = [n for n, step in enumerate(disk.steps) if step.kind == kind and step.file.startswith(file)][-1]
    assert _killed_at((how, point), alone, in_memory / "run", breaks) not in (None, "the kill did not land")


def test_without_the_kill_nothing_has_landed(alone: Alone, in_memory: Path) -> None:
    assert _killed_at(("kill", len(alone.steps)), alone, in_memory / "run") == "the kill did not land"


def test_killed_at_any_time(torture: Torture, in_memory: Path) -> None:
    moments = numpy_stream(0, "moments")
    alone = Alone(in_memory / "alone", MORE)
    wanted, landed, again, faults = 100 if torture.is_full else 5, 0, 0, list[str]()
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
            resumed = run_to_end(folder, MORE, workers=int(moments.integers(3)))
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
