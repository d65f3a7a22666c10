"""A site's connection to the server: Flower's fleet interface, by Flower's own client and the site's own keys.

Messages come in and replies go out; the code that Flower offers with them is never asked for. What goes wrong is told
in words that the site's people can act upon.
"""

from __future__ import annotations

import ssl
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, SYSTEM_TIME_TOLERANCE, TIMESTAMP_TOLERANCE
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedfomo.deployment.encryption import require_private
from fedfomo.deployment.settings import SiteFolder
from fedfomo.errors import damaged, reading
from fedfomo.io import PRIVATE, write_atomically

SOON = 0.1  # seconds before a piece of a message that the server is still sending is asked for again
UNAUTHORIZED, NOT_LET_IN = 401, 412  # answers of the SuperLink
RESTORE = "restore it from a copy, or ask who runs the server for new keys"
PULL = 600.0  # seconds that a message may take to arrive whole


class LinkError(Exception):
    """The server cannot be reached, or lets the site not in; the message says why, and what to do."""


class FleetConnection:
    """What a site exchanges with the SuperLink."""

    def __init__(self, site: SiteFolder) -> None:
        site.require_files()
        self._site = site
        self._card = site.card()
        self._private, self._public = generate_key_pairs() if self._card.plaintext else _keys(site.key)
        authority = None if self._card.plaintext else site.ca.read_bytes()
        interceptors = [
            RuntimeVersionHttpInterceptor("SuperNode"),
            NodeAuthHttpInterceptor(self._private, self._public),
        ]
        try:
            self._client = FleetHttpClient.from_server_address(
                self._card.address, self._card.plaintext, authority, interceptors
            )
        except (ssl.SSLError, ValueError) as error:
            raise damaged(site.ca, RESTORE, error) from error
        self._node: Node | None = None
        self._heartbeat = HeartbeatSender(self._is_heard)

    def activate(self) -> None:
        """Be let in; raise `LinkError` where that cannot be, yet or ever."""
        key = public_key_to_bytes(self._public)
        try:
            if self._card.plaintext:
                self._client.RegisterNode(RegisterNodeFleetRequest(public_key=key))
            request = ActivateNodeRequest(public_key=key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        except (httpx.HTTPError, OSError) as error:
            raise LinkError(self._words(error)) from error
        write_atomically(self._site.node, str(self._node.node_id).encode(), mode=PRIVATE)
        self._heartbeat.start()

    def receive(self) -> Message | None:
        """Return a message of the server, if there is one."""
        node = self._active()
        found = self._client.PullMessages(PullMessagesRequest(node=node))
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            header = message_from_proto(proto)
            run, name = header.metadata.run_id, header.metadata.message_id
            pieces = pull_objects(
                list(dict.fromkeys(piece.object_id for piece in iterate_object_tree(tree))),
                make_pull_object_fn_protobuf(self._client.PullObject, node, run),
                max_time=PULL,
                initial_backoff=SOON,
            )
            self._client.ConfirmMessageReceived(
                ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)
            )
            message = inflate_object_from_contents(name, pieces)
            if not isinstance(message, Message):
                raise LinkError(f"the server sends a {type(message).__name__} in place of a message")
            message.metadata.__dict__["_message_id"] = name  # as Flower's own node does
            return message
        return None

    def send(self, reply: Message, seconds: float) -> None:
        """Send a reply, which took so many seconds."""
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            session, wanted = self.announce(reply, get_object_tree(reply), seconds)
            self.push(reply.metadata.run_id, session, get_all_nested_objects(reply), wanted)

    def announce(self, reply: Message, tree: ObjectTree, seconds: float) -> tuple[str, set[str]]:
        """Announce a reply, and return the name of the upload and the pieces that the server wants."""
        header = remove_content_from_message(reply) if reply.has_content() else reply
        request = PushMessagesRequest(
            node=self._active(),
            messages_list=[message_to_proto(header)],
            message_object_trees=[tree],
            clientapp_runtime_list=[seconds],
        )
        told = self._client.PushMessages(request)
        return told.session_id, set(told.objects_to_push)

    def push(self, run: int, session: str, pieces: dict[str, InflatableObject], wanted: set[str]) -> None:
        """Upload the pieces of a reply."""
        upload = make_push_object_fn_protobuf(self._client.PushObject, self._active(), run, session)
        push_objects(pieces, upload, object_ids_to_push=wanted)

    def close(self) -> None:
        """Leave, so that the site can come back at once."""
        if self._heartbeat.is_running:
            self._heartbeat.stop()
        if self._node is not None:
            with suppress(httpx.HTTPError, RuntimeError):  # the server may be gone, or have struck the site off
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
        self._client.close()

    def _active(self) -> Node:
        if self._node is None:
            raise RuntimeError("the connection is not active")
        return self._node

    def _is_heard(self) -> bool:
        request = SendNodeHeartbeatRequest(node=self._active(), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            return self._client.SendNodeHeartbeat(request).success
        except (httpx.HTTPError, OSError):  # the next look for messages finds out why
            return False

    def _words(self, error: Exception) -> str:
        """Say why the site is not let in."""
        address = self._card.address
        text = str(error)
        if isinstance(error, httpx.HTTPStatusError):
            code = error.response.status_code
            ahead = _ahead(error.response)
            if code == UNAUTHORIZED and not -TIMESTAMP_TOLERANCE < ahead < SYSTEM_TIME_TOLERANCE:
                return f"this machine's clock is {ahead:+.0f} s from the server's: {CLOCK_RULE}; set the clock"
            if code in (UNAUTHORIZED, NOT_LET_IN):
                return IN_USE if self._is_known() else UNKNOWN
            return (
                f"the server at {address} answers with {code}:"
                " this is not a fedfomo server, or a proxy whose server is down"
            )
        if "CERTIFICATE_VERIFY_FAILED" in text:
            return (
                f"what answers at {address} shows no certificate that {self._site.ca.name} vouches for ({text}): {CA}"
            )
        return f"no server answers at {address} ({text or type(error).__name__})"

    def _is_known(self) -> bool:
        """Tell whether the server knows the key of this site, by the name that it had for it when it was last here."""
        if not self._site.node.exists():
            return False
        node = Node(node_id=int(self._site.node.read_text()))
        try:
            self._client.GetRun(GetRunRequest(node=node, run_id=0))
        except httpx.HTTPStatusError as error:
            return error.response.status_code != UNAUTHORIZED  # there is no such run, for one it knows
        except (httpx.HTTPError, OSError):
            return False
        return True


CLOCK_RULE = (
    f"Flower lets nobody in whose clock is {SYSTEM_TIME_TOLERANCE} s ahead,"
    f" or {TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE} s behind"
)
IN_USE = (
    "this site's keys are in use: this site ended abruptly less than a minute ago, or a copy of this folder runs"
    " elsewhere"
)
UNKNOWN = (
    "the server does not know this site's key: it has just started and registers its sites still, or this site was"
    " removed from the federation (ask who runs the server)"
)
CA = (
    "either that is not your server, or this folder is of another federation, or its certificate has expired or was"
    " made for another address (ask who runs the server)"
)


def _keys(path: Path) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    require_private(path)
    with reading(path, RESTORE):
        key = load_ssh_private_key(path.read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise LinkError(f"{path} holds no key of the right kind: ask for the site's folder again")
    return key, key.public_key()


def _ahead(response: httpx.Response) -> float:
    """Return by how many seconds this machine's clock is ahead of the server's, as far as that can be told."""
    told = response.headers.get("date")
    return time.time() - parsedate_to_datetime(told).timestamp() if told else 0.0
