"""Replies to messages that were sent, each with so many seconds to arrive whole.

Every look asks for what has come of every reply, and waits for none: a node that withholds a piece of its reply, sends
it drop by drop, or dies over it, costs nobody else anything. Nor does a reply of odd content, or of too many bytes.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import httpx
from flwr.app import Array, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_type_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedfomo.deployment.encryption import DecryptionError
from fedfomo.deployment.flower_grid import LINK_IS_GONE, SLACK, Announcement, MessageGrid, PieceError
from fedfomo.deployment.flower_records import GRACE

POLL = 0.2  # seconds between looks for replies
PACE = 0.03  # seconds between looks for each reply that is waited for
PIECES = 16  # of a reply of no length; there may be one more for each MB

log = logging.getLogger(__name__)

T = TypeVar("T")
Whose = TypeVar("Whose")


class ReplyError(ValueError):
    """What came in reply is a fault or cannot be read, or nothing came in time."""


@dataclass
class _Expected(Generic[Whose]):
    """A reply that is waited for, and what has arrived of it."""

    whose: Whose
    closes: float
    announcement: Announcement | None = None
    pieces: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def late(self, seconds: float) -> str:
        if self.announcement is None:
            return f"no answer within {seconds:.0f} s"
        arrived = f"{len(self.pieces)} of {len(self.announcement.pieces)} pieces arrived"
        return f"its answer was announced, and {arrived} within {seconds:.0f} s"


class DroppingGrid:
    """A grid that forgets replies: those that were read, and those that nobody waits for any more.

    Flower takes a reply for `GRACE` longer than it is waited for, and would keep it until the run is over.
    """

    def __init__(self, grid: MessageGrid) -> None:
        self.push_messages, self.announced, self.piece = grid.push_messages, grid.announced, grid.piece
        self._grid = grid
        self._late: dict[str, float] = {}  # messages without a reply, and how long there may be one

    def drop(self, message_id: str, announcement: Announcement | None) -> None:
        """Let the SuperLink forget what has come in reply to a message, and take no more of it."""
        if announcement is None:
            self._late[message_id] = time.monotonic() + GRACE
            return
        try:
            self._grid.confirm(announcement)
        except httpx.HTTPStatusError as error:
            log.warning("the SuperLink keeps a reply: %s", error)

    def drop_late(self) -> None:
        """Do the same with replies that have come too late."""
        for message_id, until in list(self._late.items()):
            announcement = self._grid.announced(message_id)
            if announcement is not None or time.monotonic() > until:
                del self._late[message_id]
            if announcement is not None:
                self.drop(message_id, announcement)


class ReplyPoller(Generic[Whose, T]):
    """Messages that were sent, each with so many seconds to be answered, and what is read in the replies."""

    def __init__(self, grid: DroppingGrid, seconds: float, most: int, read: Callable[[RecordDict], T]) -> None:
        self._grid = grid
        self._seconds = seconds
        self._most = most  # bytes of a reply
        self._read = read
        self._expected: dict[str, _Expected[Whose]] = {}  # by message
        self._due = 0.0  # the next look while messages are sent

    def send(self, message: Message, whose: Whose) -> Iterator[tuple[Whose, T | ReplyError]]:
        """Send a message, and yield what has come in the meantime: sending all of them may take long."""
        (message_id,) = self._grid.push_messages([message])
        now = time.monotonic()
        self._expected[message_id] = _Expected(whose, now + self._seconds)
        if now >= self._due:
            yield from self._look()
            ended = time.monotonic()
            self._due = ended + max(self._pause(), ended - now)  # at most half of the time is spent on looking

    def wait(self) -> Iterator[tuple[Whose, T | ReplyError]]:
        """Yield what comes until every message is answered or late."""
        while self._expected:
            yield from self._look()
            time.sleep(self._pause() if self._expected else 0)

    def _pause(self) -> float:
        """Return how long not to look: each reply that is waited for is a request to the SuperLink."""
        return max(POLL, PACE * len(self._expected))

    def _look(self) -> Iterator[tuple[Whose, T | ReplyError]]:
        for message_id, expected in list(self._expected.items()):
            is_late = time.monotonic() >= expected.closes  # asked before the look: what came in time is taken
            try:
                found = self._fetch(message_id, expected)
            except ReplyError as error:
                found = error
            if found is None and is_late:
                found = ReplyError(expected.late(self._seconds))
            if found is not None:
                del self._expected[message_id]
                self._grid.drop(message_id, expected.announcement)
                yield expected.whose, found
        self._grid.drop_late()

    def _fetch(self, message_id: str, expected: _Expected[Whose]) -> T | None:
        """Return what is read in the reply to a message, or None as long as it is not there whole.

        Whatever the reply says of itself, it is taken for one to that message: nobody answers in another's name.
        """
        try:
            if expected.announcement is None:
                expected.announcement = self._grid.announced(message_id)
            if expected.announcement is None or not self._is_whole(expected, expected.announcement):
                return None
            _refuse_repetition(expected.pieces)
            reply = inflate_object_from_contents(expected.announcement.pieces[-1], expected.pieces)
            return self._read(_content_of(reply))
        except (ReplyError, *LINK_IS_GONE):
            raise
        except (DecryptionError, PieceError) as error:
            raise ReplyError(str(error)) from error
        except Exception as error:  # whatever a forged message makes its reader raise
            raise ReplyError(f"its reply cannot be read ({type(error).__name__})") from error

    def _is_whole(self, expected: _Expected[Whose], announcement: Announcement) -> bool:
        """Fetch what has arrived of a reply, and tell whether that is all; refuse one that is too long."""
        names, limit = announcement.pieces, PIECES + self._most // 2**20
        if len(names) > limit:
            raise PieceError(f"it has {len(names):,} pieces, more than {limit:,}")
        held = sum(len(piece) for piece in expected.pieces.values())
        for name in names:
            if name in expected.pieces:
                continue
            piece = self._grid.piece(name, self._most)
            if piece is None:
                return False
            held += len(piece)
            if held > self._most + SLACK:
                raise PieceError(f"it has {held:,} bytes or more, more than {self._most:,}")
            expected.pieces[name] = piece
        return True


def _refuse_repetition(pieces: Mapping[str, bytes]) -> None:
    """Refuse arrays that name a chunk twice: a few bytes could say that they are any number."""
    named: list[str] = []
    for piece in pieces.values():
        if get_object_type_from_object_content(piece) == Array.__qualname__:
            chunks = get_object_children_ids_from_object_content(piece)
            named += [chunks[place] for place in json.loads(get_object_body(piece, Array))["arraychunk_ids"]]
    if len(named) > len(set(named)):
        raise PieceError("it repeats a piece of itself")


def _content_of(reply: object) -> RecordDict:
    if not isinstance(reply, Message):
        raise ReplyError(f"its reply is no message, but a {type(reply).__name__}")
    if reply.has_error():
        raise ReplyError(f"{reply.error.reason or 'failed'} (code {reply.error.code})")
    return reply.content
