"""Checkpoints: a manifest that names, with checksums, everything a run needs to go on.

The tensors are in files already (`tensor_store.py`); a checkpoint adds one small JSON manifest, written in one atomic
step once everything it names is on disk. The last two are kept, so that a damaged one costs a round, not a run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedfomo.core.model import Score
from fedfomo.engine.tensor_store import References, files_in
from fedfomo.errors import InputError, require
from fedfomo.io import write_atomically

KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """A run between two rounds."""

    configuration: str  # digest of whatever decides the result
    rounds_done: int
    state: References
    memories: Mapping[int, References]
    scores_after_training: Mapping[int, Score]  # each client's latest
    refusals: Mapping[int, int]  # how many uploads of each client were refused so far
    traffic: Mapping[str, Any]
    gradients: int
    log_bytes: int  # how much of the log belongs to the rounds done
    checksums: Mapping[str, str]
    models: Mapping[int, References] = field(default_factory=dict[int, References])  # of clients under privacy
    ledgers: Mapping[int, list[list[Any]]] = field(default_factory=dict[int, list[list[Any]]])  # of their queries
    log_checksum: str | None = None  # of that much of the log

    def files(self) -> set[str]:
        """Name every tensor file that the checkpoint refers to."""
        kept = (*self.memories.values(), *self.models.values())
        return files_in(self.state).union(*(files_in(references) for references in kept))

    def with_checksums(self, checksums: Mapping[str, str]) -> Checkpoint:
        """Return the same checkpoint with the checksum of every file that it refers to."""
        return replace(self, checksums={name: checksums[name] for name in sorted(self.files())})


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, tensors: Path, log: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._tensors = tensors
        self._log = log
        self._warn = warn
        self.pinned: int | None = None  # a checkpoint that stays: so many rounds were done
        self._files: dict[Path, set[str]] = {}  # what each kept checkpoint refers to
        folder.mkdir(parents=True, exist_ok=True)

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint and drop those that are too old."""
        path = self._path(checkpoint.rounds_done)
        write_atomically(path, _with_checksum(_to_json(checkpoint)))
        self._files[path] = checkpoint.files()
        kept = None if self.pinned is None else self._path(self.pinned)
        for outdated in self._newest_first()[KEPT:]:
            if outdated != kept:
                outdated.unlink()
                self._files.pop(outdated, None)

    def at(self, rounds_done: int) -> Checkpoint | None:
        """Return the checkpoint after so many rounds; None, with a warning, if it is not whole."""
        path = self._path(rounds_done)
        found = self._read(path) if path.exists() else None
        fault = "it is missing or damaged" if found is None else self._fault(found)
        if fault is not None:
            self._warn(f"checkpoint {path.name}, of the best round, cannot be used: {fault}; the last round's is taken")
            return None
        return found

    def files_in_use(self) -> set[str]:
        """Name every tensor file that a kept checkpoint refers to."""
        for path in self._newest_first():
            if path not in self._files:
                checkpoint = self._read(path)
                self._files[path] = checkpoint.files() if checkpoint else set()
        return set[str]().union(*self._files.values())

    def newest(self, configuration: str) -> Checkpoint | None:
        """Return the newest checkpoint that is whole, and put aside those that are not, saying so."""
        is_log_damaged = False
        for path in self._newest_first():
            checkpoint = self._read(path)
            fault = "it is damaged" if checkpoint is None else self._fault(checkpoint)
            if checkpoint is None or fault is not None:
                self._warn(f"checkpoint {path.name} cannot be used: {fault}; trying the one before")
                path.rename(path.with_suffix(".damaged"))
                self._files.pop(path, None)
                continue
            if not self._has_log_of(checkpoint):
                self._warn(f"checkpoint {path.name} cannot be used: {self._log.name} is damaged; trying the one before")
                is_log_damaged = True
                continue
            if checkpoint.configuration != configuration:
                raise InputError(
                    f"{path} was made with another configuration, or another version of fedfomo or torch:"
                    " restore these, or start a new run"
                )
            return checkpoint
        # Rounds that were run well are not run again for the sake of their lines, unless somebody says so.
        require(
            not is_log_damaged,
            f"{self._log} is damaged or not all there: put it back from a copy, or start again from the first round"
            f" by deleting {self._folder}",
        )
        if any(self._folder.glob("*.damaged")):
            self._warn("no usable checkpoint is left: starting again from the first round")
        return None

    def _has_log_of(self, checkpoint: Checkpoint) -> bool:
        if checkpoint.log_checksum is None:
            return True
        if not self._log.exists():
            return False
        with self._log.open("rb") as file:
            return _checksum(file.read(checkpoint.log_bytes)) == checkpoint.log_checksum

    def _fault(self, checkpoint: Checkpoint) -> str | None:
        for name in sorted(checkpoint.files()):
            path = self._tensors / name
            if path.parent != self._tensors:
                return f"{name} lies elsewhere"
            if not path.exists():
                return f"{name} is missing"
            if not path.is_file() or _checksum(path.read_bytes()) != checkpoint.checksums.get(name):
                return f"{name} is damaged"
        return None

    def _read(self, path: Path) -> Checkpoint | None:
        try:
            content = path.read_bytes()
            body: str = json.loads(content)["checkpoint"]
            if content != _with_checksum(body):
                return None
            inner: dict[str, Any] = json.loads(body)
            for name in ("rounds_done", "log_bytes"):
                inner[name] = int(inner[name])
            inner["ledgers"] = inner.pop("bills")
            for name in ("memories", "models", "ledgers", "refusals"):
                inner[name] = {int(client): content for client, content in inner[name].items()}
            scores = inner["scores_after_training"]
            inner["scores_after_training"] = {int(client): Score.from_dict(score) for client, score in scores.items()}
            found = Checkpoint(**inner)
            found.files()  # a manifest that was forged may name what are no files
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
            return None
        return found if path == self._path(found.rounds_done) else None  # it may be a copy of another

    def _path(self, rounds_done: int) -> Path:
        return self._folder / f"after-round-{rounds_done:05d}.json"

    def _newest_first(self) -> list[Path]:
        return sorted(self._folder.glob("after-round-*.json"), key=_rounds_done, reverse=True)


def _rounds_done(path: Path) -> tuple[int, str]:
    """Return the number in a manifest's name: from round 100,000 on, names are longer than before."""
    number = path.stem.removeprefix("after-round-")
    return int(number) if number.isdecimal() else -1, path.name


def _to_json(checkpoint: Checkpoint) -> str:
    fields = dict(vars(checkpoint))
    fields["bills"] = fields.pop("ledgers")  # the name that earlier versions read
    return json.dumps(fields, default=vars, sort_keys=True)


def _with_checksum(body: str) -> bytes:
    return json.dumps({"checksum": _checksum(body.encode()), "checkpoint": body}).encode()


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
