"""A site's memory, in files of its own: it survives whatever happens to processes.

After every round the memory and the answer are kept, for the last few rounds. So a server that comes back and asks
again gets the same answer without any new computation, and one that fell back by a round finds the memory of then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from fedfomo.core.messages import Flat, MessageError
from fedfomo.deployment.protocol import Envelope
from fedfomo.io import PRIVATE, lock, write_atomically

KEPT = 3  # rounds

T = TypeVar("T")


class SiteMemory:
    """The files of one site in one federation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, exist_ok=True)

    @contextmanager
    def locked(self) -> Generator[None]:
        """Let no other process of this site work at the same time."""
        with lock(self._folder / "lock"):
            yield

    def validate(self, attempt: int, round: int) -> str | None:
        """Say why a request comes too late: the server has started anew since, or has closed that round."""
        path = self._folder / "attempt"
        latest = int(path.read_text()) if path.exists() else 0
        if attempt < latest:
            return "it is of an earlier start of the server"
        if attempt > latest:
            self._forget(lambda number: number > round)  # first: killed between the two, it is done again
            write_atomically(path, str(attempt).encode(), mode=PRIVATE)
        if any(self._number(path) > round for path in self._memories()):
            return f"round {round} is over"
        return None

    def initial(self) -> Flat | None:
        """Return the common initial model, if the server has sent it."""
        return self._read(self._folder / "initial.parcel", lambda envelope: envelope.tensors)

    def keep_initial(self, flat: Flat) -> None:
        """Keep the common initial model."""
        self._write(self._folder / "initial.parcel", Envelope({}, flat))

    def before(self, round: int) -> Flat | None:
        """Return what was remembered last before a round; None if nothing was, or nothing whole is left."""
        for path in sorted(self._memories(), reverse=True):
            found = self._read(path, lambda envelope: envelope.tensors) if self._number(path) < round else None
            if found is not None:
                return found
        return None

    def answer_to(self, round: int, request: str) -> Envelope | None:
        """Return the answer that was given to the same request before."""

        def same(envelope: Envelope) -> Envelope | None:
            return envelope if envelope.header.get("order") == request else None

        return self._read(self._folder / f"answer-{round:05d}.parcel", same)

    def keep(self, round: int, memory: Flat, request: str, answer: Envelope) -> None:
        """Keep memory and answer of a round, and drop those that are too old."""
        self._write(self._folder / f"memory-{round:05d}.parcel", Envelope({}, memory))
        answer = Envelope({**answer.header, "order": request}, answer.tensors)
        self._write(self._folder / f"answer-{round:05d}.parcel", answer)
        self._forget(lambda number: number <= round - KEPT)

    def _memories(self) -> list[Path]:
        return list(self._folder.glob("memory-*.parcel"))

    def _forget(self, is_due: Callable[[int], bool]) -> None:
        for path in (*self._memories(), *self._folder.glob("answer-*.parcel")):
            if is_due(self._number(path)):
                path.unlink()

    def _number(self, path: Path) -> int:
        return int(path.stem.rpartition("-")[2])

    def _write(self, path: Path, envelope: Envelope) -> None:
        content = envelope.to_bytes()
        write_atomically(path, hashlib.sha256(content).digest() + content, mode=PRIVATE)

    def _read(self, path: Path, use: Callable[[Envelope], T | None]) -> T | None:
        if not path.exists():
            return None
        found = path.read_bytes()
        if hashlib.sha256(found[32:]).digest() != found[:32]:
            return None
        try:
            return use(Envelope.read(found[32:]))
        except MessageError:
            return None
