"""Locks and folders of runs: what is in the way is named, and two runs never share a folder."""

import errno
import fcntl
import time
from pathlib import Path

import pytest

from fedfomo.errors import InputError
from fedfomo.io import lock
from fedfomo.runs.run import new_folder


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EAGAIN, "it is busy"),
        (errno.EACCES, "it is busy"),
        (errno.ENOLCK, "lock cannot be locked .No locks available.: give a folder on a file system that has locks"),
    ],
)
def test_only_a_lock_that_is_held_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", fail)
    with pytest.raises(InputError, match=words):
        lock(tmp_path / "lock", "it is busy")


def test_runs_that_begin_in_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "now")
    assert [new_folder(None, "run").name for _ in range(3)] == ["now-run", "now-run-2", "now-run-3"]
    with pytest.raises(InputError, match="now-run exists: choose another with --out"):
        new_folder(Path("runs/now-run"), "run")
