"""Who was sent which model in which round, and whose it was: a log to which lines can only be added.

Every line holds the hash of the line before it, so none can be changed, moved or taken out unnoticed; that none was
cut off at the end shows in the count and hash that a second file, the head file, keeps. It names a line
before that is on disk, and again after: whatever dies between, the log may be ahead by that very line, never behind.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedfomo.errors import reading, require
from fedfomo.io import write_atomically

FIRST = "0" * 64


@dataclass(frozen=True)
class Head:
    """The end of a log: how many lines it has, and the hash of the last one."""

    lines: int
    hash: str
    coming: str | None = None  # the hash of a line that is just being added, as far as the head file knows


class DeliveryLog:
    """The log, open for adding to."""

    def __init__(self, path: Path, is_expected: bool = False) -> None:
        self._path = path
        self.head, fault = examine(path, is_expected)
        anew = "`fedfomo deploy server --new-log` puts it aside, and begins a new one"
        require(fault is None, f"{path} was tampered with: {fault}; find out why, then {anew}")
        _drop_torn_line(path)
        if path.exists():  # a line that was coming has come, or never will
            self._write_head()

    def add(self, record: dict[str, Any]) -> None:
        """Add a line, and return once it is on disk."""
        moment = datetime.now(UTC).isoformat(timespec="seconds")
        content = {"line": self.head.lines, "time": moment, **record, "previous": self.head.hash}
        line = json.dumps(content).encode()
        self._write_head(coming=_hash(line))
        with self._path.open("ab") as file:
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.head = Head(self.head.lines + 1, _hash(line))
        self._write_head()

    def records(self) -> Iterator[dict[str, Any]]:
        """Read all lines, the oldest first."""
        if self._path.exists():
            with self._path.open() as file:
                yield from map(json.loads, file)

    def _write_head(self, coming: str | None = None) -> None:
        write_atomically(head_file_of(self._path), json.dumps(asdict(replace(self.head, coming=coming))).encode())


def begin_anew(path: Path) -> Path | None:
    """Put a log aside, and begin a new one knowingly; return where the old one is, if there is any."""
    aside = path.with_name(f"{path.stem}-{datetime.now(UTC):%Y%m%dT%H%M%S}{path.suffix}")
    for old, new in ((path, aside), (head_file_of(path), head_file_of(aside))):
        if old.exists():
            old.rename(new)
    write_atomically(head_file_of(path), json.dumps(asdict(Head(0, FIRST))).encode())
    return aside if aside.exists() else None


class ModelProvenance:
    """Whose the models are that may still be sent: those of each site's last two uploads.

    Two, since a round that too few sites answered is run again with the models of the one before it. Several sites
    can upload the same model: it stays with the one that was first, for as long as any of them has it.
    """

    def __init__(self) -> None:
        self._uploads: dict[str, list[list[str]]] = {}  # of each site
        self._owners: dict[str, str] = {}  # by a model's hash

    def note(self, site: str, hashes: Iterable[str]) -> None:
        """Take down what a site has uploaded; the same again, in a round that is run again, counts once."""
        upload, known = list(hashes), self._uploads.get(site, [])
        if upload in known:
            return
        self._uploads[site] = [*known[-1:], upload]
        for found in upload:
            self._owners.setdefault(found, site)
        current = {found for uploads in self._uploads.values() for one in uploads for found in one}
        for found in {found for outdated in known[:-1] for found in outdated} - current:
            del self._owners[found]

    def of(self, models: Mapping[str, str]) -> dict[str, str]:
        """Return who uploaded each of some named models first, by their hashes, as far as that is known."""
        return {name: self._owners[found] for name, found in models.items() if found in self._owners}


def head_file_of(path: Path) -> Path:
    """Return where the end of a log is kept."""
    return path.with_suffix(".head")


def examine(path: Path, is_expected: bool = False) -> tuple[Head, str | None]:
    """Return the end of a log, and what shows that it was tampered with; a server may be adding to it meanwhile.

    It is expected once a round is complete: then there was a log, even if nothing is left of it.
    """
    before = _read_head(path)
    if before is None and is_expected and not path.exists():
        return Head(0, FIRST), f"it is gone, and {head_file_of(path).name} with it, though rounds were run"
    if before is not None and before.lines and not path.exists():
        return Head(0, FIRST), f"it is gone, and {before.lines} lines were written"
    hashes, fault = _walk(path)
    after = _read_head(path)
    head = Head(len(hashes) - 1, hashes[-1])
    known, latest = before or Head(0, FIRST), after or Head(0, FIRST)
    if fault is not None:
        return head, fault
    if head.lines < known.lines:
        return head, f"it has {head.lines} lines, of {known.lines} that were written"
    if hashes[known.lines] != known.hash:
        return head, f"line {known.lines} is not the one that was written"
    was_coming = head.lines == latest.lines + 1 and head.hash == latest.coming
    if head.lines > latest.lines and not was_coming:
        return head, f"it has {head.lines} lines, and {latest.lines} were written"
    return head, None


def _read_head(path: Path) -> Head | None:
    head_file = head_file_of(path)
    if not head_file.exists():
        return None
    with reading(head_file, f"nobody can vouch for {path.name}; move both aside, if you want to go on with a new log"):
        known = json.loads(head_file.read_bytes())
        return Head(max(0, int(known["lines"])), str(known["hash"]), known.get("coming"))


def _walk(path: Path) -> tuple[list[str], str | None]:
    """Return the hashes of all lines that follow from each other, and what is wrong with the first that does not."""
    hashes = [FIRST]
    content = path.read_bytes() if path.exists() else b""
    for line in content.split(b"\n")[:-1]:  # what a crash tore, or a server is just writing, has no end
        try:
            record = json.loads(line)
            follows = record["previous"] == hashes[-1] and record["line"] == len(hashes) - 1
        except (ValueError, KeyError, TypeError, RecursionError):
            follows = False
        if not follows:
            return hashes, f"line {len(hashes)} does not follow from the one before"
        hashes.append(_hash(line))
    return hashes, None


def _drop_torn_line(path: Path) -> None:
    """Drop what a crash left half written: nothing was sent before its line was on disk."""
    if path.exists():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
