"""Faults where a process meets its disk: it is killed, cut off or refused at its n-th step there.

`Disk` stands between Python and the system for one forked process and the workers that it forks. A step is whatever
leaves a trace below one folder: opening a file to write, each write, each sync, rename, deletion, cut and new folder.
Nothing of this is known to the code under test.
"""

from __future__ import annotations

import builtins
import errno
import io
import mmap
import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn

How = Literal["count", "kill", "stop", "tear", "power cut", "full", "refuse", "short"]
"""What happens at the step: nothing; SIGKILL before it; SIGSTOP before it; SIGKILL in the middle of a write; SIGKILL,
and all that was not synced is lost; no room any more, for this step and all that follow; an error of the device, once.
Or, at every write, half of it is written and the caller told so.
"""

NEEDS_ROOM = ("open", "write", "sync", "rename", "folder")


class Step(NamedTuple):
    """What was done to which file of the folder."""

    kind: str
    file: str


@dataclass
class Disk:
    """Counts the steps of all processes that share it, and brings about one fault."""

    folder: Path
    how: How = "count"
    at: int = -1
    _trace: mmap.mmap = field(default_factory=lambda: mmap.mmap(-1, 100_000))  # lines, in memory that forks share
    _count: Any = field(default_factory=lambda: multiprocessing.Array("q", 2))  # of steps, and of bytes of the trace

    @property
    def steps(self) -> list[Step]:
        """Every step that was taken."""
        lines = self._trace[: self._count.get_obj()[1]].decode().splitlines()
        return [Step(*line.split(" ", 1)) for line in lines]

    def stand_between(self) -> None:
        """Take effect in this process, for as long as it lives."""
        self._synced: dict[str, int] = {}  # bytes of each file that would survive a power cut
        self._renamed: list[tuple[str, str]] = []  # which a power cut would undo
        builtins.open = io.open = self._open
        for name, kind in _KINDS.items():
            setattr(os, name, self._watched(kind, getattr(os, name)))

    def step(self, kind: str, path: str) -> bool:
        """Take down a step; return True if it is the one to be spoilt in a way of its own."""
        with self._count.get_lock():
            number, length = self._count
            line = f"{kind} {os.path.relpath(path, self.folder)}\n".encode()
            self._trace[length : length + len(line)] = line
            self._count[:] = number + 1, length + len(line)
        if self.how == "full" and number >= self.at and kind in NEEDS_ROOM:
            if kind == "write":
                return True
            _refuse(errno.ENOSPC, None if kind == "sync" else path)
        if self.how == "short":
            return kind == "write"
        if number != self.at:
            return False
        if self.how == "power cut":
            self._lose_unsynced()
        if self.how in ("kill", "power cut"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            return False
        if self.how == "refuse":
            _refuse(errno.EIO, None if kind in ("write", "sync") else path)
        return True

    def write(self, file: io.FileIO, content: memoryview) -> int:
        """Write for a file; if this is the step to be spoilt, half of it."""
        if not self.step("write", str(file.name)):
            return io.FileIO.write(file, content)
        written = io.FileIO.write(file, content[: -(-len(content) // 2)])
        if self.how == "tear":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "full":
            _refuse(errno.ENOSPC, None)
        return written

    def _open(self, file: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if isinstance(file, int) or not set(mode) & set("wax+") or not self._is_ours(path := os.fspath(file)):
            return _open(file, mode, *rest, **options)
        self.step("open", path)
        raw = _WatchedFile(path, mode.replace("b", ""))
        raw.disk = self
        self._synced[path] = os.stat(path).st_size
        binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return binary if "b" in mode else io.TextIOWrapper(binary, encoding="utf-8")

    def _watched(self, kind: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(place: Any, *rest: Any, **options: Any) -> Any:
            path = _path(place, options.get("dir_fd"))
            if not self._is_ours(path) or (kind == "folder") == os.path.exists(path):
                return call(place, *rest, **options)
            self.step(kind, path)
            if kind == "sync":
                self._note_sync(path)
                return None  # whether the page cache reached the disk makes no difference to a process
            result = call(place, *rest, **options)
            if kind == "rename":
                self._synced[os.fspath(rest[0])] = self._synced.pop(path, 0)
                self._renamed.append((path, os.fspath(rest[0])))
            return result

        return watched

    def _is_ours(self, path: str) -> bool:
        return path.startswith(str(self.folder))

    def _note_sync(self, path: str) -> None:
        if os.path.isdir(path):
            self._renamed = [pair for pair in self._renamed if os.path.dirname(pair[1]) != path]
        else:
            self._synced[path] = os.stat(path).st_size

    def _lose_unsynced(self) -> None:
        for path, size in self._synced.items():
            if os.path.exists(path):
                with _open(path, "rb+") as file:
                    file.truncate(min(size, os.stat(path).st_size))
        for before, after in reversed(self._renamed):
            if os.path.exists(after):
                _rename(after, before)


class _WatchedFile(io.FileIO):
    disk: Disk

    def write(self, content: Any, /) -> int:
        return self.disk.write(self, memoryview(content).cast("B"))

    def truncate(self, size: int | None = None, /) -> int:
        self.disk.step("cut", str(self.name))
        return super().truncate(size)


_open, _rename = io.open, os.rename
_KINDS = {
    "fsync": "sync",
    "replace": "rename",
    "rename": "rename",
    "unlink": "delete",
    "rmdir": "delete",
    "mkdir": "folder",
}


def _path(place: Any, folder: int | None) -> str:
    if isinstance(place, int):
        return os.readlink(f"/proc/self/fd/{place}")
    return os.fspath(place) if folder is None else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), place)


def _refuse(number: int, path: str | None) -> NoReturn:
    raise OSError(number, os.strerror(number), *([] if path is None else [path]))
