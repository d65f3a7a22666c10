"""What the server asks of Flower's SuperLink: who is there, and messages and replies, these in pieces.

Flower's own `pull_messages` waits, inside, until every object of a reply has arrived, and so long nobody else is heard.
Here a reply is fetched piece by piece by whoever has the time, and a piece that has not arrived is no reason to wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from flwr.app import Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.run import RunNotRunningException

SLACK = 2**20  # bytes of a response beside what it carries

LINK_IS_GONE = (httpx.TransportError, OSError, RunNotRunningException)
"""What is raised when it is not the reply that is at fault."""


@dataclass(frozen=True)
class Announcement:
    """A reply that a node has announced: the names of its pieces, the last of which is the whole."""

    pieces: list[str]


class PieceError(ValueError):
    """A piece of a reply is lost, or too long."""


class MessageGrid(Protocol):
    """Where messages go, and replies come from."""

    def get_nodes(self) -> Iterable[Any]: ...

    def push_messages(self, messages: list[Message]) -> Iterable[str]: ...

    def announced(self, message_id: str) -> Announcement | None:
        """Return what the reply to a message consists of, once, as soon as there is one."""
        ...

    def piece(self, name: str, most: int) -> bytes | None:
        """Return a piece of at most so many bytes, or None if it has not arrived."""
        ...

    def confirm(self, announcement: Announcement) -> None:
        """Let the SuperLink forget a reply."""
        ...


class FlowerGrid:
    """The same, by the client of Flower's `HttpGrid`."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._most: int | None = None

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def push_messages(self, messages: list[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def announced(self, message_id: str) -> Announcement | None:
        found = self._client().PullMessages(PullAppMessagesRequest(message_ids=[message_id]))
        for tree in found.message_object_trees:
            return Announcement(list(dict.fromkeys(node.object_id for node in iterate_object_tree(tree))))
        return None

    def piece(self, name: str, most: int) -> bytes | None:
        request = PullObjectRequest(node=self._grid.node, run_id=self._grid.run.run_id, object_id=name)
        found = self._client(most).PullObject(request)
        if not found.object_found:
            raise PieceError("its upload was broken off")
        return found.object_content if found.object_available else None

    def confirm(self, announcement: Announcement) -> None:
        whole = announcement.pieces[-1]
        request = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=whole
        )
        self._client().ConfirmMessageReceived(request)

    def _client(self, most: int | None = None) -> Any:
        """Return the client, which reads no response that carries more bytes than it may."""
        client = self._grid._runtime_client
        self._most = most
        client._client.event_hooks = {"response": [self._refuse_long]}
        return client

    def _refuse_long(self, response: httpx.Response) -> None:
        """Look at a response before its body is read."""
        length = response.headers.get("content-length", "0")
        if self._most is not None and int(length) > self._most + SLACK:
            raise PieceError(f"a piece of it has {int(length):,} bytes, more than {self._most:,}")
