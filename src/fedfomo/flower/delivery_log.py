"""Who was sent which model in which round, and whose it was: a log to which lines can only be added.

Every line holds the hash of the line before it, so none can be changed, moved or taken out unnoticed; that none was
cut off at the end shows in the count and hash that the server keeps elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedfomo.errors import reading, require
from fedfomo.writing import write_atomically

FIRST = "0" * 64


@dataclass(frozen=True)
class Head:
    """The end of a log: how many lines it has, and the hash of the last one."""

    lines: int
    hash: str


class DeliveryLog:
    """The log, open for adding to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._witness = path.with_suffix(".head")
        _drop_torn_line(path)
        self.head, fault = _walk(path)
        require(fault is None, f"{path} was tampered with: {fault}; put it aside, and start a new one")

    def add(self, *records: dict[str, Any]) -> None:
        """Add lines, and return once they are on disk."""
        lines: list[str] = []
        number, previous = self.head.lines, self.head.hash
        for record in records:
            moment = datetime.now(UTC).isoformat(timespec="seconds")
            line = json.dumps({"line": number, "time": moment, **record, "previous": previous})
            number, previous = number + 1, _hash(line)
            lines.append(line + "\n")
        with self._path.open("a") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        self.head = Head(number, previous)
        write_atomically(self._witness, json.dumps(vars(self.head)).encode())

    def records(self) -> Iterator[dict[str, Any]]:
        """Read all lines, the oldest first."""
        if self._path.exists():
            with self._path.open() as file:
                yield from map(json.loads, file)


class Owners:
    """Whose the models are that may still be sent: those of each site's last two uploads.

    Two, since a round that too few sites answered is played again with the models of the one before it.
    """

    def __init__(self) -> None:
        self._uploads: dict[str, list[list[str]]] = {}  # of each site
        self._owners: dict[str, str] = {}  # by a model's hash

    def note(self, site: str, hashes: Iterable[str]) -> None:
        """Take down what a site has uploaded; the same again, in a round that is played again, counts once."""
        upload, known = list(hashes), self._uploads.get(site, [])
        if upload in known:
            return
        for found in (found for outdated in known[:-1] for found in outdated):
            self._owners.pop(found, None)
        self._uploads[site] = [*known[-1:], upload]
        self._owners.update(dict.fromkeys(upload, site))

    def of(self, models: Mapping[str, str]) -> dict[str, str]:
        """Return the owners, as far as they are known, of named models that are given by their hashes."""
        return {name: self._owners[found] for name, found in models.items() if found in self._owners}


def fault_in(path: Path) -> str | None:
    """Say what shows that a log was tampered with, or return None."""
    if not path.exists():
        return None
    head, fault = _walk(path)
    if fault is not None:
        return fault
    witness = path.with_suffix(".head")
    with reading(witness, "the log's end cannot be vouched for"):
        known = Head(**json.loads(witness.read_bytes())) if witness.exists() else Head(0, FIRST)
    if head.lines < known.lines:
        return f"it has {head.lines} lines, of {known.lines} that were written"
    if head.lines == known.lines and head.hash != known.hash:
        return "its last line is not the one that was written"
    return None


def _walk(path: Path) -> tuple[Head, str | None]:
    head = Head(0, FIRST)
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            record = json.loads(line)
            follows = record["previous"] == head.hash and record["line"] == head.lines
        except (ValueError, KeyError, TypeError, RecursionError):
            follows = False
        if not follows:
            return head, f"line {head.lines + 1} does not follow from the one before"
        head = Head(head.lines + 1, _hash(line))
    return head, None


def _drop_torn_line(path: Path) -> None:
    """Drop what a crash left half written: nothing was sent before its line was on disk."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _hash(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()
