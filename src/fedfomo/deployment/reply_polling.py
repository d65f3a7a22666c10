"""Replies of nodes, fetched one by one: what a node sends may be such that Flower itself stumbles over it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedfomo.deployment.encryption import SealError

POLL = 0.2  # seconds between looks for replies

T = TypeVar("T")
Whose = TypeVar("Whose")


class ReplyError(ValueError):
    """What came in reply is a fault or cannot be read, or nothing came in time."""


class ReplyPoller(Generic[Whose, T]):
    """Messages that were sent, each with so many seconds to be answered, and what is read in the replies."""

    def __init__(self, grid: Grid, seconds: float, read: Callable[[RecordDict], T]) -> None:
        self._grid = grid
        self._seconds = seconds
        self._read = read
        self._waiting: dict[str, tuple[Whose, float]] = {}  # by message, until when
        self._due = 0.0  # the next look while messages are sent

    def send(self, message: Message, whose: Whose) -> Iterator[tuple[Whose, T | ReplyError]]:
        """Send a message, and yield what has come in the meantime: sending all of them may take long."""
        (message_id,) = self._grid.push_messages([message])
        now = time.monotonic()
        self._waiting[message_id] = whose, now + self._seconds
        if now >= self._due:
            yield from self._look()
            ended = time.monotonic()
            self._due = ended + max(POLL, ended - now)  # at most half of the time is spent on looking

    def wait(self) -> Iterator[tuple[Whose, T | ReplyError]]:
        """Yield what comes until every message is answered or late."""
        while self._waiting:
            yield from self._look()
            time.sleep(POLL if self._waiting else 0)

    def _look(self) -> Iterator[tuple[Whose, T | ReplyError]]:
        for message_id, (whose, closes) in list(self._waiting.items()):
            is_late = time.monotonic() >= closes  # asked before the look: what came in time is taken
            try:
                found = self._fetch(message_id)
            except ReplyError as error:
                found = error
            if found is None and is_late:
                found = ReplyError(f"no answer within {self._seconds:.0f} s")
            if found is not None:
                del self._waiting[message_id]
                yield whose, found

    def _fetch(self, message_id: str) -> T | None:
        """Return what is read in the reply to a message, or None as long as there is none.

        Whatever the reply says of itself, it is taken for one to that message: nobody answers in another's name.
        Fetched with others it would take them along: Flower drops all that it has read when the next cannot be.
        """
        try:
            for reply in self._grid.pull_messages([message_id]):
                return self._read(_content_of(reply))
        except (ReplyError, httpx.HTTPError, OSError):  # the latter two: it is the SuperLink that is gone
            raise
        except SealError as error:
            raise ReplyError(str(error)) from error
        except Exception as error:  # whatever a forged message makes its reader raise
            raise ReplyError(f"its reply cannot be read ({type(error).__name__})") from error
        return None


def _content_of(reply: Message) -> RecordDict:
    if reply.has_error():
        raise ReplyError(f"{reply.error.reason or 'failed'} (code {reply.error.code})")
    return reply.content
