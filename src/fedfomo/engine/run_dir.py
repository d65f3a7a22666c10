"""Where a run lives on disk: log, tensors, checkpoints, and a lock against two processes writing at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from torch import Tensor

from fedfomo.engine.checkpoint import Checkpoints
from fedfomo.engine.tensor_store import TensorStore, laid_out
from fedfomo.errors import naming
from fedfomo.io import delete_folder, delete_unfinished, lock, read_lines, sync_files, to_json, write_atomically


def lock_run(folder: Path) -> TextIO:
    """Keep other processes out of a run's folder until the file that is returned is closed."""
    return lock(folder / "lock", f"{folder} is in use by another process: wait for it, or stop it first")


class RunDirectory:
    """The folder of one run."""

    def __init__(self, folder: Path, configuration: str, warn: Callable[[str], None]) -> None:
        self.folder = folder
        self.configuration = configuration
        self._log = folder / "rounds.jsonl"
        self._logged = hashlib.sha256()
        self._unsynced: list[Path] = []
        self._made = {folder}
        self._times = folder / "seconds.jsonl"
        self._lock = lock_run(folder)
        delete_unfinished(folder)
        self.tensors = TensorStore(folder / "tensors", durable=True)
        self.checkpoints = Checkpoints(folder / "checkpoints", self.tensors.folder, self._log, warn)

    @property
    def log_checksum(self) -> str:
        """The checksum of the log as it should be."""
        return self._logged.hexdigest()

    def log(self, record: dict[str, Any]) -> int:
        """Append a line to the log and return the log's new length in bytes."""
        line = to_json(record).encode() + b"\n"
        with naming(self._log), self._log.open("ab") as file:
            file.write(line)
            self._logged.update(line)
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def read_log(self) -> list[dict[str, Any]]:
        """Read the lines that are logged."""
        return read_lines(self._log) if self._log.exists() else []

    def log_seconds(self, record: dict[str, Any]) -> None:
        """Append where a round's time went to a file of its own: the log is the same for the same configuration."""
        with naming(self._times), self._times.open("a") as file:
            file.write(to_json(record) + "\n")

    def truncate_log(self, length: int) -> None:
        """Drop what was logged after a checkpoint: those rounds will be run again."""
        content = _cut(self._log, length)
        self._logged = hashlib.sha256(content)
        if self._times.exists():  # a full disk may have left half a line
            _cut(self._times, self._times.read_bytes().rfind(b"\n") + 1)

    def count_attempt(self, round: int) -> tuple[int, int]:
        """Write down, for good, that a round is about to be run; return the attempts in all, and those at this round.

        The file has a line for every attempt. Servers of earlier versions wrote their number alone, without a newline.
        """
        path = self.folder / "attempts"
        known = path.read_text() if path.exists() else ""
        earlier = known.split() if known.endswith("\n") else ["-"] * int(known or 0)
        attempts = [*earlier, str(round)]
        write_atomically(path, "\n".join([*attempts, ""]).encode())  # half a number would be another round's
        return len(attempts), attempts.count(str(round))

    def write_tensors(self, name: str, tensors: Mapping[str, Tensor], durable: bool = True) -> None:
        """Write a safetensors file for others to read; one that is not durable is on disk after the next `sync`."""
        path = self.folder / name
        if path.parent not in self._made:
            path.parent.mkdir(exist_ok=True)
            self._made.add(path.parent)
        write_atomically(path, *laid_out(tensors), durable=durable)
        if not durable:
            self._unsynced.append(path)

    def sync(self) -> None:
        """Wait until all that was written is on disk."""
        sync_files(self._unsynced)
        self._unsynced.clear()

    @staticmethod
    def needs_clearing(folder: Path) -> bool:
        """Tell whether a run's folder holds what only a resumption would need."""
        return any((folder / name).exists() for name in ("checkpoints", "tensors"))

    def remove_checkpoints(self) -> None:
        """Delete what only a resumption would need."""
        self.tensors.forget()  # files that are mapped would be deleted later, one by one
        for folder in (self.folder / "checkpoints", self.tensors.folder):
            delete_folder(folder)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


def _cut(file: Path, length: int) -> bytes:
    """Cut a file to its first bytes and return them."""
    if not file.exists():
        return b""
    with naming(file), file.open("rb+") as opened:
        content = opened.read(length)
        opened.truncate(len(content))
    return content
