"""What the SuperLink need not keep any more, it is told to forget."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from flwr.app import Array, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity

from fedfomo.deployment import replies
from fedfomo.deployment.flower_grid import Announcement
from fedfomo.deployment.flower_records import CONTENT, ONE_PIECE, content_of, record_of
from fedfomo.deployment.replies import DroppingGrid, ReplyError, ReplyPoller


class Grid:
    """A grid to which one reply comes, when it is told to."""

    def __init__(self) -> None:
        self.pieces: dict[str, bytes] = {}
        self.confirmed: list[str] = []
        self.is_deaf = False
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1

    def reply(self, content: RecordDict) -> None:
        message = Message(content, 2, "train")
        self.pieces = {name: piece.deflate() for name, piece in get_all_nested_objects(message).items()}

    def push_messages(self, messages: list[Message]) -> list[str]:
        return ["asked" for _ in messages]

    def announced(self, message_id: str) -> Announcement | None:
        return Announcement(list(self.pieces)) if self.pieces and not self.confirmed else None

    def piece(self, name: str, most: int) -> bytes | None:
        return self.pieces[name]

    def confirm(self, announcement: Announcement) -> None:
        if self.is_deaf:
            raise httpx.HTTPStatusError("500", request=httpx.Request("POST", "/"), response=httpx.Response(500))
        self.confirmed.append(announcement.pieces[-1])


def _ask(grid: Any, seconds: float) -> Any:
    question = Message(RecordDict({}), 2, "train")
    poller = ReplyPoller[str, bytes](grid, seconds, 1000, content_of)
    ((_, found),) = [*poller.send(question, "leeds"), *poller.wait()]
    return found


def _array(chunks: int, times: int) -> RecordDict:
    """Return an array of some chunks, all of which it names several times."""
    record = record_of(bytes(ONE_PIECE + 1))
    pieces = [Array("uint8", (4,), "", bytes([number] * 4)).slice_array()[0] for number in range(chunks)]
    record.array_records[CONTENT][CONTENT].__dict__["_chunks"] = pieces * times
    return record


def test_a_reply_is_forgotten_once_it_was_read() -> None:
    grid = Grid()
    grid.reply(_array(3, 1))
    assert _ask(DroppingGrid(grid), 5) == b"\0\0\0\0\1\1\1\1\2\2\2\2"
    assert len(grid.confirmed) == 1


def test_a_reply_that_names_a_piece_of_itself_many_times_is_not_unfolded_and_is_forgotten() -> None:
    grid = Grid()
    grid.reply(_array(2, 10**5))
    found = _ask(DroppingGrid(grid), 5)
    assert isinstance(found, ReplyError)
    assert str(found) == "it repeats a piece of itself"
    assert len(grid.confirmed) == 1


def test_a_reply_that_comes_late_is_neither_read_nor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid()
    dropping = DroppingGrid(grid)
    assert isinstance(_ask(dropping, 0.0), ReplyError)
    dropping.drop_late()
    assert grid.confirmed == []
    grid.reply(_array(3, 1))
    dropping.drop_late()
    assert len(grid.confirmed) == 1
    monkeypatch.setattr(replies, "GRACE", 0.0)
    grid.pieces = {}
    assert isinstance(_ask(dropping, 0.0), ReplyError)
    dropping.drop_late()
    grid.confirmed, grid.is_deaf = [], True
    grid.reply(_array(3, 1))
    dropping.drop_late()  # nobody asks for it any more


def test_a_superlink_that_keeps_a_reply_ends_no_round(caplog: pytest.LogCaptureFixture) -> None:
    grid = Grid()
    grid.is_deaf = True
    grid.reply(_array(3, 1))
    assert isinstance(_ask(DroppingGrid(grid), 5), bytes)
    assert "the SuperLink keeps a reply" in caplog.text
