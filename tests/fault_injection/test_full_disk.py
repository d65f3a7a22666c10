"""Disks that are full, or fail, at every step that a run takes on them."""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from faults import NEEDS_ROOM, Disk, How
from fedfomo import io
from fedfomo.engine import checkpoint, run_dir
from fedfomo.engine.checkpoint import Checkpoints
from fedfomo.runs.config_io import to_cli
from killed_runs import Alone, command, config_of, run_to_end
from scorecard import Torture

CONFIG = config_of(rounds=3, clients=2, vectorise=False)
WHY = {"full": os.strerror(errno.ENOSPC), "refuse": os.strerror(errno.EIO)}
Break = Callable[[], None]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    return Alone(tmp_path_factory.mktemp("alone") / "run", CONFIG)


def _refused_at(
    point: tuple[How, int], alone: Alone, folder: Path, workers: int = 0, breaks: Break = lambda: None
) -> str | None:
    """Let the disk refuse a step of `fedfomo run`, put it right, resume, and say what is not as it should be."""
    disk = Disk(folder, *point)

    def first() -> None:
        breaks()
        disk.stand_between()

    flags = shlex.split(" ".join(to_cli(CONFIG)))
    code, said = command(["run", *flags, "--out", str(folder)], CONFIG, workers, first)
    if code == 0:
        return "the fault did not land"
    lines, why = said.splitlines(), WHY[point[0]]
    named = re.match(f"fedfomo: cannot (write|use) {re.escape(str(folder))}", said)
    if code != 2 or len(lines) != 1 or named is None or why not in said:
        return f"exit code {code}: {said}"
    if folder.exists() and f"fedfomo resume {folder}" not in said:
        return f"no way on: {said}"
    finished = max((int(path.stem[-5:]) for path in folder.glob("checkpoints/after-round-*.json")), default=0)
    resumed = run_to_end(folder, CONFIG, first=breaks)
    return f"it tells {resumed.told}" if resumed.told else alone.fault_in(folder, finished, resumed)


def _all_refused(points: list[tuple[How, int]], alone: Alone, folder: Path, workers: int = 0) -> dict[str, str]:
    faults: dict[str, str] = {}
    for point in points:
        if fault := _refused_at(point, alone, folder / "run", workers):
            faults[str(point)] = fault
        shutil.rmtree(folder / "run", ignore_errors=True)
    return faults


def test_full_at_every_step(torture: Torture, alone: Alone, in_memory: Path) -> None:
    points: list[tuple[How, int]] = [("full", n) for n, step in enumerate(alone.steps) if step.kind in NEEDS_ROOM]
    points = points if torture.is_full else points[7::10]
    faults = _all_refused(points, alone, in_memory)
    torture.record(
        "02",
        "A full disk costs one line and no finished round",
        "no room (ENOSPC) from the n-th step on disk on, for every n of a run; then room is made and the run resumed",
        f"{len(points) - len(faults)} of {len(points)}: one line with path and way on, exit code 2;"
        " the last checkpoint loads; same bits",
        not faults,
        faults=faults,
    )


def test_an_error_of_the_device_at_every_step(torture: Torture, alone: Alone, in_memory: Path) -> None:
    points: list[tuple[How, int]] = [("refuse", n) for n in range(len(alone.steps))]
    points = points if torture.is_full else points[7::10]
    faults = _all_refused(points, alone, in_memory)
    torture.record(
        "02b",
        "A disk that fails costs one line and no finished round",
        "an error of the device (EIO) at the n-th step, for every n",
        f"{len(points) - len(faults)} of {len(points)}: the same",
        not faults,
        faults=faults,
    )


def test_full_or_failing_under_workers(torture: Torture, alone: Alone, in_memory: Path) -> None:
    """Steps are counted over all processes, so it depends on the machine whose step is refused."""
    first = next(n for n, step in enumerate(alone.steps) if step.file.startswith("tensors/round"))
    last = max(n for n, step in enumerate(alone.steps) if step.kind == "write")
    steps = range(first, last, max(1, (last - first) // torture.repetitions(20)))
    points: list[tuple[How, int]] = [("full" if n % 2 else "refuse", n) for n in steps]
    faults = _all_refused(points, alone, in_memory, workers=2)
    torture.record(
        "02c",
        "A full disk costs one line and no finished round",
        "both, where the coordinator or one of two workers takes the n-th step",
        f"{len(points) - len(faults)} of {len(points)}: the same",
        not faults,
        faults=faults,
    )


def test_short_writes(alone: Alone, in_memory: Path) -> None:
    disk = Disk(in_memory / "run", "short")
    ended = run_to_end(in_memory / "run", CONFIG, first=disk.stand_between)
    assert alone.fault_in(in_memory / "run", 0, ended) is None
    assert sum(step.kind == "write" for step in disk.steps) > 3 * sum(step.kind == "write" for step in alone.steps)


def _write_in_place() -> None:
    Checkpoints._path = lambda self, rounds_done: self._folder / "after-round-00000.json"
    checkpoint.write_atomically = lambda path, *content: path.write_bytes(b"".join(content))


def _forget_names() -> None:
    io.naming = run_dir.naming = lambda path: nullcontext()


@pytest.mark.parametrize("breaks", [_write_in_place, _forget_names])
def test_a_way_of_writing_with_a_flaw_does_not_pass(breaks: Break, alone: Alone, in_memory: Path) -> None:
    disk = Disk(in_memory / "whole")

    def first() -> None:
        breaks()
        disk.stand_between()

    run_to_end(in_memory / "whole", CONFIG, first=first)
    manifests = [n for n, step in enumerate(disk.steps) if step == ("write", step.file) and "checkpoints" in step.file]
    fault = _refused_at(("full", manifests[-1]), alone, in_memory / "run", breaks=breaks)
    assert fault not in (None, "the fault did not land")


def test_without_the_fault_nothing_has_landed(alone: Alone, in_memory: Path) -> None:
    point: tuple[How, int] = ("full", len(alone.steps))
    assert _refused_at(point, alone, in_memory / "run") == "the fault did not land"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_small_disks(torture: Torture, alone: Alone, tmp_path: Path) -> None:
    sizes = range(16, 200, 8 if torture.is_full else 80)
    faults, full = dict[str, str](), 0
    for size in sizes:
        disk = tmp_path / f"{size}k"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("this machine does not allow mounts")
        try:
            ended = run_to_end(disk / "run", CONFIG)
            full += (ended.error or "").startswith(f"OSError: [Errno {errno.ENOSPC}]") and str(disk) in ended.error
            subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
            if fault := alone.fault_in(disk / "run", ended.finished, run_to_end(disk / "run", CONFIG)):
                faults[str(size)] = fault
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    torture.record(
        "02d",
        "A full disk costs one line and no finished round",
        f"real disks of {sizes[0]} to {sizes[-1]} kB, made larger when full",
        f"{full} of {len(sizes)} were full before the end; {len(sizes) - len(faults)} of {len(sizes)}: same bits",
        not faults and full > 0,
        faults=faults,
    )
