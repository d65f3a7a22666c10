"""Checkpoints and logs that are damaged, mixed up or lost are never gone on with."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults import Disk
from fedfomo.core.rng import numpy_stream
from fedfomo.engine.checkpoint import Checkpoints
from fedfomo.errors import InputError
from fedfomo.runs.config import RunConfig
from killed_runs import KILLED, Alone, config_of, run_to_end
from scorecard import Torture

CONFIG = config_of(rounds=4, clients=3, vectorise=False)
NEVER_USED = "A damaged checkpoint is never used"


@dataclass(frozen=True)
class Interrupted:
    """A run that was killed in its fourth round, after its line of the log was written."""

    folder: Path
    configuration: str
    alone: Alone

    def manifest(self, rounds: int) -> Path:
        return self.folder / "checkpoints" / f"after-round-{rounds:05d}.json"

    @property
    def log(self) -> Path:
        return self.folder / "rounds.jsonl"

    def tensors(self, rounds: int) -> list[Path]:
        """List the files that one of the two checkpoints needs and the other does not."""
        named = {n: set(_content(self.manifest(n))["checksums"]) for n in (2, 3)}
        return [self.folder / "tensors" / name for name in sorted(named[rounds] - named[5 - rounds])]

    def copy(self, to: Path) -> Interrupted:
        shutil.copytree(self.folder, to)
        return Interrupted(to, self.configuration, self.alone)

    def newest(self) -> int | str | None:
        """Return how many rounds are done in what a resumption would go on from, or why it would refuse to."""
        checkpoints = Checkpoints(self.folder / "checkpoints", self.folder / "tensors", self.log, lambda _: None)
        try:
            found = checkpoints.newest(self.configuration)
        except InputError as error:
            return str(error)
        return None if found is None else found.rounds_done

    def newest_with(self, path: Path, content: bytes) -> int | str | None:
        """The same with other content in one of the files, which is then put back."""
        whole = path.read_bytes()
        path.write_bytes(content)
        found = self.newest()
        for aside in self.folder.glob("checkpoints/*.damaged"):
            aside.rename(aside.with_suffix(".json"))
        path.write_bytes(whole)
        return found

    def fault_after(self, began: int) -> str | None:
        """Resume, from that many rounds, and say what is not as in the run that was left alone."""
        resumed = run_to_end(self.folder, CONFIG)
        fault = self.alone.fault_in(self.folder, began, resumed)
        return fault or (None if resumed.began_at == began else f"began at {resumed.began_at}, not {began}")


def _content(manifest: Path) -> dict[str, dict[str, str]]:
    return json.loads(json.loads(manifest.read_bytes())["checkpoint"])


def _interrupt(place: Path, config: RunConfig) -> Interrupted:
    alone = Alone(place / "alone", config)
    fourth = next(n for n, step in enumerate(alone.steps) if step.file.startswith("checkpoints/after-round-00004"))
    folder = place / "run"
    assert run_to_end(folder, config, first=Disk(folder, "kill", fourth).stand_between).exit_code == KILLED
    configuration = str(_content(folder / "checkpoints" / "after-round-00003.json")["configuration"])
    return Interrupted(folder, configuration, alone)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return _interrupt(tmp_path_factory.mktemp("interrupted"), CONFIG)


@pytest.fixture(scope="module")
def another(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    return _interrupt(tmp_path_factory.mktemp("another"), config_of(rounds=4, clients=3, vectorise=False, seed=1))


def _damages(run: Interrupted, flips: int, cuts: int) -> list[tuple[Path, bytes]]:
    """Draw bit flips and truncations of what the newest checkpoint is made of; a third of them of its manifest."""
    rng = numpy_stream(0, "damage")
    tensors = run.tensors(3)
    damages: list[tuple[Path, bytes]] = []
    for number in range(flips + cuts):
        path = run.manifest(3) if number % 3 == 0 else tensors[int(rng.integers(len(tensors)))]
        content = path.read_bytes()
        place = int(rng.integers(len(content)))
        if number < flips:
            flipped = content[place] ^ (1 << int(rng.integers(8)))
            damages.append((path, content[:place] + bytes([flipped]) + content[place + 1 :]))
        else:
            damages.append((path, content[:place]))
    return damages


def test_bit_flips_and_truncations(torture: Torture, interrupted: Interrupted, in_memory: Path) -> None:
    run = interrupted.copy(in_memory / "run")
    flips, cuts = torture.repetitions(1000), torture.repetitions(200)
    damages = _damages(run, flips, cuts)
    found = Counter(run.newest_with(path, content) for path, content in damages)
    sample = damages[:: len(damages) // torture.repetitions(40)]
    faults: list[str] = []
    for number, (path, content) in enumerate(sample):
        damaged = interrupted.copy(in_memory / str(number))
        (damaged.folder / path.relative_to(run.folder)).write_bytes(content)
        fault = damaged.fault_after(2)
        faults += [fault] if fault else []
        shutil.rmtree(damaged.folder)
    torture.record(
        "03",
        NEVER_USED,
        f"{flips:,} bit flips and {cuts} truncations of the newest checkpoint's manifest and tensor files",
        f"{found[2]:,} of {len(damages):,} noticed, and the one before used; {found[3]} loaded;"
        f" {len(sample) - len(faults)} of {len(sample)} that were resumed: same bits",
        found == {2: len(damages)} and not faults,
        faults=faults,
    )


def test_damage_would_not_be_noticed_without_checksums(
    interrupted: Interrupted, in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = interrupted.copy(in_memory / "run")
    assert run.newest() == 3
    damages = [damage for damage in _damages(run, 90, 0) if damage[0] != run.manifest(3)]
    monkeypatch.setattr(Checkpoints, "_fault", lambda self, checkpoint: None)
    assert Counter(run.newest_with(*damage) for damage in damages) == {3: len(damages)}


def test_bit_flips_in_the_log(torture: Torture, interrupted: Interrupted, in_memory: Path) -> None:
    run = interrupted.copy(in_memory / "run")
    rng = numpy_stream(0, "log")
    content = run.log.read_bytes()
    ends = [n for n, byte in enumerate(content) if byte == ord("\n")]
    begins_and_ends = {"third": (ends[1] + 1, ends[2] + 1), "earlier": (0, ends[1] + 1), "fourth": (ends[2] + 1, None)}
    found: dict[str, Counter[int | str | None]] = {}
    repetitions = torture.repetitions(100)
    for line, (begin, end) in begins_and_ends.items():
        answers: list[int | str | None] = []
        for _ in range(repetitions):
            place = int(rng.integers(begin, end or len(content)))
            damaged = content[:place] + bytes([content[place] ^ (1 << int(rng.integers(8)))]) + content[place + 1 :]
            answer = run.newest_with(run.log, damaged)
            answers.append("refused" if "put it back from a copy" in str(answer) else answer)
        found[line] = Counter(answers)
    run.log.write_bytes(content[: ends[2] - 20])  # the log is cut short: the third line is run again
    fault = run.fault_after(2)
    torture.record(
        "03b",
        "The log of a resumed run is the log of a run that was left alone",
        f"{3 * repetitions} bit flips in rounds.jsonl, and lines lost",
        f"in the last finished round's line: {found['third'][2]} of {repetitions} noticed, the round run again;"
        f" before it: {found['earlier']['refused']} of {repetitions} refused in words; behind it: cut off, as ever",
        found == {"third": {2: repetitions}, "earlier": {"refused": repetitions}, "fourth": {3: repetitions}}
        and fault is None,
        found={line: dict(counts) for line, counts in found.items()},
        resumed=fault,
    )


def _swap(a: Path, b: Path) -> None:
    content = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(content)


def _mixed_up(run: Interrupted, another: Interrupted) -> dict[str, tuple[Callable[[], object], int]]:
    """Name ways to mix up or lose files, and how many rounds are left after each."""
    old, new, theirs = run.tensors(2), run.tensors(3), another.tensors(3)

    def both() -> None:
        _swap(old[0], new[0])

    return {
        "a file of a round is that of the round before": (lambda: shutil.copy(old[0], new[0]), 2),
        "a file of a round and that of the round before are swapped": (both, 0),
        "a file is that of another run": (lambda: shutil.copy(theirs[0], new[0]), 2),
        "two files of a round are swapped": (lambda: _swap(new[0], new[1]), 2),
        "a manifest is that of the round before": (lambda: shutil.copy(run.manifest(2), run.manifest(3)), 2),
        "a manifest claims a later round": (lambda: shutil.copy(run.manifest(2), run.manifest(4)), 3),
        "a manifest is empty": (lambda: run.manifest(3).write_bytes(b""), 2),
        "a manifest is lost": (run.manifest(3).unlink, 2),
        "both manifests are lost": (lambda: [run.manifest(n).unlink() for n in (2, 3)], 0),
        "both manifests are empty": (lambda: [run.manifest(n).write_bytes(b"") for n in (2, 3)], 0),
        "all tensors are lost": (lambda: [path.unlink() for path in (*old, *new)], 0),
        **{f"{path.name[:27]} is lost": (path.unlink, 2) for path in new},
        **{f"{path.name[:27]} is empty": (lambda path=path: path.write_bytes(b""), 2) for path in new},
    }


def test_files_that_are_mixed_up_or_lost(
    torture: Torture, interrupted: Interrupted, another: Interrupted, in_memory: Path
) -> None:
    names = list(_mixed_up(interrupted, another))
    faults: dict[str, str] = {}
    names = names if torture.is_full else names[::4]
    for name in names:
        run = interrupted.copy(in_memory / "run")
        mix_up, began = _mixed_up(run, another)[name]
        mix_up()
        if fault := run.fault_after(began):
            faults[name] = fault
        shutil.rmtree(run.folder)
    torture.record(
        "03c",
        NEVER_USED,
        f"files swapped between rounds and between runs, stale manifests, files lost or emptied: {len(names)} cases",
        f"{len(names) - len(faults)} of {len(names)}: the newest that is whole is used, or the run starts again;"
        " same bits",
        not faults,
        faults=faults,
    )


def test_a_checkpoint_of_another_run_is_refused(
    interrupted: Interrupted, another: Interrupted, in_memory: Path
) -> None:
    run = interrupted.copy(in_memory / "run")
    for rounds in (2, 3):
        shutil.copy(another.manifest(rounds), run.manifest(rounds))
    for path in (another.folder / "tensors").iterdir():
        shutil.copy(path, run.folder / "tensors")
    shutil.copy(another.log, run.log)
    assert "another configuration" in str(run.newest())
