"""Where a run lives on disk: log, tensors, checkpoints, and a lock against two processes writing at once."""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedfomo.errors import InputError
from fedfomo.simulation.checkpoint import Checkpoints
from fedfomo.simulation.tensors import TensorFiles, write_atomically


class RunHome:
    """The folder of one run."""

    def __init__(self, folder: Path, configuration: str, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.configuration = configuration
        self.tensors = TensorFiles(folder / "tensors", durable=True)
        self.checkpoints = Checkpoints(folder / "checkpoints", self.tensors.folder, tell)
        self._log = folder / "rounds.jsonl"
        self._times = folder / "seconds.jsonl"
        # A record lock, unlike flock, is not inherited by forked workers that may outlive this process.
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InputError(f"{folder} is in use by another process: wait for it, or stop it first") from None

    def log(self, record: dict[str, Any]) -> int:
        """Append a line to the log and return the log's new length in bytes."""
        line = to_json(record) + "\n"
        with self._log.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def log_seconds(self, record: dict[str, Any]) -> None:
        """Append where a round's time went to a file of its own: the log is the same for the same configuration."""
        with self._times.open("a") as file:
            file.write(to_json(record) + "\n")

    def cut_log(self, length: int) -> None:
        """Drop what was logged after a checkpoint: those rounds will be played again."""
        if self._log.exists():
            os.truncate(self._log, min(length, self._log.stat().st_size))

    def attempts(self, round: int) -> int:
        """Write down, for good, that a round is about to be played, and return how often it was."""
        path = self.folder / "attempts"
        with path.open("a") as file:
            file.write(f"{round}\n")
            file.flush()
            os.fsync(file.fileno())
        return path.read_text().split().count(str(round))

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write a safetensors file for others to read."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, save({key: tensor.contiguous() for key, tensor in tensors.items()}))

    def clear_up(self) -> None:
        """Delete what only a resumption would need."""
        for folder in (self.folder / "checkpoints", self.tensors.folder):
            shutil.rmtree(folder)

    def close(self) -> None:
        """Release the lock."""
        self._lock.close()


def to_json(value: Any, indent: int | None = None) -> str:
    """Spell out plain values as strict JSON."""
    return json.dumps(_without_nan(value), allow_nan=False, indent=indent)


def _without_nan(value: Any) -> Any:
    """Write what is not a number as null: JSON has no other word for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
