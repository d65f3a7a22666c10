"""A run that lasts, among clients that fail, and is killed again and again: nothing grows but its log.

An hour, or a day: SOAK_MINUTES=1440 pytest tests/fault_injection/test_soak.py --torture
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from fedfomo.deployment.subprocesses import wait_until
from fedfomo.runs.records import percentile
from scorecard import ROOT, Torture

SCRIPT = Path(__file__).with_name("soak_run.py")
MINUTES = float(os.environ.get("SOAK_MINUTES", "9"))
GROWTH, FILES, DISK, DRIFT = 0.01, 8, 0.1, 0.1  # that are allowed; files of a round or two are open at any time
ENOUGH = 150  # rounds that show a leak


class Soak:
    """The process that soaks in a folder."""

    def __init__(self, folder: Path, clients: int, *leak: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        command = [sys.executable, str(SCRIPT), str(folder), str(clients), *leak]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
        with (folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=output, env={**os.environ, "PYTHONPATH": path}
            )

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples of this process."""
        path = self.folder / "samples.jsonl"
        lines = lines_of(path) if path.exists() else []
        return [sample for sample in lines if sample["pids"][0] == self._process.pid]

    def kill_after(self, rounds: int, seconds: float = 0.0) -> None:
        """Kill the process once it has run so many rounds, and for so long, and see its worker go."""
        log = self.folder / "seconds.jsonl"  # a short line a round
        began, before = time.monotonic(), count(log)
        while time.monotonic() - began < seconds or count(log) - before < rounds:
            assert self._process.poll() is None, (self.folder / "output").read_text()
            time.sleep(0.05 if seconds == 0 else 1)
        self._process.send_signal(signal.SIGKILL)
        assert self._process.wait() == -signal.SIGKILL
        workers = [pid for sample in self.samples()[-1:] for pid in sample["pids"][1:]]
        assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 30), "a worker stayed"


def count(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def lines_of(log: Path) -> Iterator[dict[str, Any]]:
    """Read the lines of a log one by one; the last may be torn."""
    with log.open() as file:
        yield from (json.loads(line) for line in file if line.endswith("\n"))


@dataclass(frozen=True)
class Course:
    """How a process changed from the first third of its life, its start left out, to the last."""

    megabytes: float  # of memory, at the outset
    memory: float  # growth of the middle value, as a share
    files: int  # growth of the largest number that was open
    disk: float  # growth of the largest amount that was kept, as a share
    drift: float  # of the 95th percentile of a round's processor time, beside that of a fixed computation, as a share

    @classmethod
    def of(cls, samples: list[dict[str, Any]]) -> Course:
        """Compare the thirds; a tenth of all samples, and no less than four, are the start, in which tables fill."""
        begin = max(4, len(samples) // 10)
        third = (len(samples) - begin) // 3
        took = [later["cpu"] - earlier["cpu"] for earlier, later in pairwise(samples)]
        before, after = samples[begin : begin + third], samples[-third:]
        memory = [median(sum(sample["memory"]) for sample in part) for part in (before, after)]
        files = [max(sum(sample["files"]) for sample in part) for part in (before, after)]
        disk = [max(sample["disk"] for sample in part) for part in (before, after)]
        slowest = [percentile(sorted(part), 0.95) for part in (took[begin : begin + third], took[-third:])]
        machine = [median(sample["yardstick"] for sample in part) for part in (before, after)]
        return cls(
            megabytes=memory[0] / 2**20,
            memory=memory[1] / memory[0] - 1,
            files=files[1] - files[0],
            disk=disk[1] / disk[0] - 1,
            drift=(slowest[1] / machine[1]) / (slowest[0] / machine[0]) - 1,
        )


def _life(soak: Soak, rounds: int, minutes: float = 0.0) -> Course:
    soak.kill_after(rounds, 60 * minutes)
    return Course.of(soak.samples())


def test_nothing_grows_in_a_run_that_lasts(torture: Torture, tmp_path: Path) -> None:
    folder, kills = tmp_path / "run", torture.repetitions(10)
    clients, minutes = (100, MINUTES) if torture.is_full else (30, 0.0)
    for kill in range(kills):
        Soak(folder, clients).kill_after(rounds=2 + 3 * kill)
    soak = Soak(folder, clients)
    course, samples = _life(soak, ENOUGH if torture.is_full else 40, minutes), soak.samples()
    rounds = failed = refused = 0
    for line in lines_of(folder / "rounds.jsonl"):
        assert line["round"] == rounds, "each round is there once, whatever was killed"
        rounds += 1
        failed += len(line["dropped"]) + len(line["late"])
        refused += len(line["refused"])
    assert failed > 0
    assert refused > 0
    if torture.is_full:  # a leak shows, whether it is one of memory or of files
        leaks = {leak: _life(Soak(tmp_path / leak, clients, leak), ENOUGH) for leak in ("models", "files")}
        assert leaks["models"].memory > GROWTH
        assert leaks["files"].files > FILES
    is_bounded = course.memory <= GROWTH and course.disk <= DISK and course.drift <= DRIFT
    if not torture.is_full:  # there are too few samples to tell a drift from the start, or from noise
        is_bounded = course.memory <= 5 * GROWTH
    played = samples[-1]["round"] - samples[0]["round"]
    torture.record(
        "29",
        "a run that lasts does not grow, nor slow down",
        f"{clients} clients, {played:,} rounds in {minutes:.0f} minutes, after {kills} times killed and resumed;"
        f" {failed:,} clients dropped out or were late, {refused:,} uploads were NaN",
        f"from the first third to the last: memory {course.memory:+.2%} of {course.megabytes:.0f} MB, open files"
        f" {course.files:+d}, checkpoints on disk {course.disk:+.1%}, p95 of a round's processor time"
        f" (beside that of a fixed computation) {course.drift:+.1%}"
        f" (allowed: {GROWTH:.0%}, {FILES}, {DISK:.0%}, {DRIFT:.0%})",
        is_bounded and course.files <= FILES,
        first=samples[len(samples) // 10],
        last=samples[-1],
        log_bytes_a_round=(folder / "rounds.jsonl").stat().st_size // rounds,
    )
