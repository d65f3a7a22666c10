"""The server's transport: downloads become encrypted jobs for sites, their checked answers become uploads.

Every model that leaves or arrives is logged. Replies are fetched one by one: what a node sends may be such that Flower
itself stumbles over it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

import httpx
import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import ClientId
from fedfomo.core.messages import Flat, MessageError
from fedfomo.core.model import Score
from fedfomo.deployment.audit_log import DeliveryLog, ModelProvenance
from fedfomo.deployment.encryption import DecryptionError, MessageCipher, Purpose
from fedfomo.deployment.flower_records import NONCE, PROOF, SITE, content_of, record_of
from fedfomo.deployment.protocol import (
    ECHOED,
    Envelope,
    Header,
    below,
    digest_of,
    most_bytes,
    most_numbers,
    part_of,
    read_message,
    read_score,
    require_header,
    require_parts,
)
from fedfomo.deployment.settings import FederationFolder, Site
from fedfomo.io import printable

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
        except DecryptionError as error:
            raise ReplyError(str(error)) from error
        except Exception as error:  # whatever a forged message makes its reader raise
            raise ReplyError(f"its reply cannot be read ({type(error).__name__})") from error
        return None


def _content_of(reply: Message) -> RecordDict:
    if reply.has_error():
        raise ReplyError(f"{reply.error.reason or 'failed'} (code {reply.error.code})")
    return reply.content


INTRODUCTION = 60.0  # seconds that a stranger has to say who it is
AGAIN = 300.0  # seconds before it is asked again

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Asked:
    """A site that was sent a request, what its answer has to repeat of the header, and how much it may hold."""

    site: Site
    echoed: Header
    most: int  # numbers in its answer


class SiteConnections:
    """Everything between the server and Flower's grid."""

    def __init__(self, grid: Grid, folder: FederationFolder) -> None:
        self.faults: dict[ClientId, str] = {}  # of the last call: who did not answer well, and why
        self.bytes_sent = 0  # likewise
        self.bytes_received = 0
        self.deliveries = DeliveryLog(folder.deliveries)
        self._grid = grid
        self._folder = folder
        self._cipher = MessageCipher.read(folder.server / "sealing.key")
        self._introduced: dict[int, str] = {}  # nodes that proved who they are, by their id
        self._asked: dict[int, float] = {}  # when unknown may be asked again
        self._owners = ModelProvenance()
        for record in self.deliveries.records():  # what was uploaded before a restart
            if record.get("event") == "received":
                self._owners.note(record["from"], record["models"].values())

    def online(self) -> dict[ClientId, int]:
        """Return the nodes of the sites that are there now; the registry is read anew: sites may join, or leave."""
        sites = self._folder.members()
        names = {site.key.strip(): site.name for site in self._folder.registry()}
        nodes = {node.node_id: names.get(node.public_key.decode(errors="replace").strip()) for node in self._nodes()}
        unknown = [node for node, name in nodes.items() if name is None and self._is_new(node)]
        if unknown:
            self._authenticate(unknown, {site.name: site for site in sites})
        slots = {site.name: site.slot for site in sites}
        found = {node: name or self._introduced.get(node) for node, name in nodes.items()}
        return {slots[name]: node for node, name in sorted(found.items()) if name in slots}

    def names(self) -> dict[ClientId, str]:
        """Return the sites' names by slot, also of those that have left."""
        return _Names({site.slot: site.name for site in self._folder.registry()})

    def ask(
        self, requests: Iterable[tuple[ClientId, Envelope]], nodes: Mapping[ClientId, int], seconds: float, most: int
    ) -> Iterator[tuple[ClientId, Envelope]]:
        """Send every request and yield good answers, which hold no more numbers than they may.

        Each site has so many seconds, and no answer counts later.
        """
        self.faults, self.bytes_sent, self.bytes_received = {}, 0, 0
        sites = {site.slot: site for site in self._folder.members()}
        replies = ReplyPoller[_Asked, bytes](self._grid, seconds, content_of)
        for slot, request in requests:
            if slot not in sites:
                continue  # it has left since
            message = self._message(sites[slot], nodes[slot], request, seconds)
            asked = _Asked(sites[slot], {name: request.header[name] for name in ECHOED}, most)
            yield from self._good(replies.send(message, asked))
        yield from self._good(replies.wait())

    def note_upload(self, slot: ClientId, round: int, models: Flat, is_refused: bool) -> None:
        """Log whose model arrived, so that deliveries can say whose they were; one that is refused is never sent."""
        name = self.names()[slot]
        hashes = _hashes(models)
        if not is_refused:
            self._owners.note(name, hashes.values())
        event = "refused" if is_refused else "received"
        self.deliveries.add({"event": event, "round": round, "from": name, "models": hashes})

    def _message(self, site: Site, node: int, request: Envelope, seconds: float) -> Message:
        encrypted = self._cipher.encrypt(site.seal, request.to_bytes(request.header["bits"]), Purpose.REQUEST)
        hashes = _hashes(request.tensors)
        header = {name: request.header[name] for name in ("round", "attempt", "kind")}
        self.deliveries.add(
            {"event": "sent", **header, "to": site.name, "models": hashes, "of": self._owners.of(hashes)}
        )
        self.bytes_sent += len(encrypted)
        return Message(
            record_of(encrypted), node, MessageType.TRAIN, ttl=seconds, group_id=str(request.header["round"])
        )

    def _good(self, replies: Iterator[tuple[_Asked, bytes | ReplyError]]) -> Iterator[tuple[ClientId, Envelope]]:
        """Yield the answers that can be used, and note what is wrong with the others."""
        for asked, reply in replies:
            try:
                answer = self._open(asked, reply)
            except (ReplyError, DecryptionError, MessageError) as error:
                self._note(asked.site, str(error))
                continue
            if "fault" in answer.header:
                self._note(asked.site, answer.header["fault"])
            if "fault" not in answer.header or answer.header.get("is_lost"):
                yield asked.site.slot, answer

    def _open(self, asked: _Asked, reply: bytes | ReplyError) -> Envelope:
        if isinstance(reply, ReplyError):
            raise reply
        self.bytes_received += len(reply)
        if len(reply) > most_bytes(asked.most):
            raise MessageError(f"it has {len(reply):,} bytes, more than {most_bytes(asked.most):,}")
        answer = Envelope.read(self._cipher.decrypt(asked.site.seal, reply, Purpose.ANSWER), asked.most)
        require_header(answer.header, asked.echoed)
        if not isinstance(answer.header.get("fault", ""), str):
            raise MessageError("what it says of its fault is no text")
        if "fault" not in answer.header and not isinstance(answer.header.get("uploads"), bool):
            raise MessageError("it does not say whether it uploads anything")
        require_parts(answer.tensors, *(["upload"] if answer.header.get("uploads") else []))
        return answer

    def _note(self, site: Site, fault: str) -> None:
        self.faults[site.slot] = printable(fault)
        log.warning("%s: %s", site.name, self.faults[site.slot])

    def _nodes(self) -> list[Any]:
        return list(self._grid.get_nodes())

    def _is_new(self, node: int) -> bool:
        """Tell whether a node should be asked who it is: one that did not say is left alone for a while."""
        now = time.monotonic()
        is_due = node not in self._introduced and now >= self._asked.get(node, now)
        if is_due:
            self._asked[node] = now + AGAIN
        return is_due

    def _authenticate(self, nodes: list[int], sites: Mapping[str, Site]) -> None:
        """Ask nodes whose keys are not known who they are; a seal over a fresh nonce proves it."""
        nonce = secrets.token_bytes(32)
        question = RecordDict({NONCE: ConfigRecord({NONCE: nonce})})
        replies = ReplyPoller[int, Any](self._grid, INTRODUCTION, _claim_in)
        messages = [Message(question, node, MessageType.QUERY, ttl=INTRODUCTION) for node in nodes]
        sent = (replies.send(message, node) for message, node in zip(messages, nodes, strict=True))
        for node, claim in chain(chain.from_iterable(sent), replies.wait()):
            try:
                self._introduced[node] = self._proven(claim, nonce, sites)
            except DecryptionError as error:
                log.warning("a node does not show who it is: %s", printable(str(error)))

    def _proven(self, claim: Any, nonce: bytes, sites: Mapping[str, Site]) -> str:
        """Return the name of the site that claims to be one; refuse a claim without proof."""
        if isinstance(claim, ReplyError):
            raise DecryptionError(str(claim))
        site, proof = sites.get(str(claim.get(SITE))), claim.get(PROOF)
        if site is None or not isinstance(proof, bytes):
            raise DecryptionError("it names no site, or brings no proof")
        if self._cipher.decrypt(site.seal, proof, Purpose.INTRODUCTION) != nonce:
            raise DecryptionError(f"it says that it is {site.name}, and is not")
        return site.name


def _claim_in(content: RecordDict) -> Any:
    return content.config_records.get(PROOF) or {}


class _Names(dict[ClientId, str]):
    """Names by slot; a site that somebody struck from the registry by hand is called by its slot."""

    def __missing__(self, slot: ClientId) -> str:
        return f"site {slot}"


def _hashes(models: Flat) -> dict[str, str]:
    return {name: digest_of(tensor) for name, tensor in models.items() if tensor.dtype == torch.float32}


class TooFewError(RuntimeError):
    """Fewer sites answered a round than it takes."""


class FlowerTransport:
    """Lets sites run a round, and closes it at the deadline with whoever has answered."""

    def __init__(
        self,
        connections: SiteConnections,
        algorithm: AnyAlgorithm,
        constants: Header,
        initial: Flat,
        deadline: float,
        min_clients: int,
    ) -> None:
        self.nodes: Mapping[ClientId, int] = {}  # of the sites on line
        self.attempt = 0  # how often the server was started
        self.greeted: set[ClientId] = set()  # sites that know the initial model
        self.answered: list[ClientId] = []  # in the last call
        self.refused: dict[ClientId, str] = {}  # likewise: what arrived was of no use
        self.after_update: dict[ClientId, Score] = {}
        self.after_training: dict[ClientId, Score] = {}
        self._connections = connections
        self._upload = messages_of(algorithm).upload
        self._constants = constants  # of every request's header
        self._initial = initial
        self._deadline = deadline
        self._minimum = min_clients

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Iterator[tuple[ClientId, Any]]:
        """Let every site personalise and train; who cannot contribute keeps what it trained to itself."""
        for slot, answer in self._ask("train", round, downloads):
            upload = self._read(slot, round, answer)
            if upload is not None:
                yield slot, upload
        if len(self.answered) < self._minimum:
            raise TooFewError(f"{len(self.answered)} sites answered, {self._minimum} are needed")

    def personalise(self, round: int, downloads: Mapping[ClientId, Any]) -> None:
        """Let every site make the federated update and no more; the models stay there."""
        for _ in self._ask("finish", round, downloads):
            pass

    def _ask(self, kind: str, round: int, downloads: Mapping[ClientId, Any]) -> Iterator[tuple[ClientId, Envelope]]:
        self.answered, self.refused, self.after_update, self.after_training = [], {}, {}, {}
        requests = ((slot, self._request(kind, round, slot, download)) for slot, download in downloads.items())
        for slot, answer in self._connections.ask(requests, self.nodes, self._deadline, self._most(downloads)):
            if answer.header.get("is_lost"):
                self.greeted.discard(slot)
                continue
            try:
                reported = [read_score(answer.header.get(point)) for point in ("after_update", "after_training")]
            except messages.MessageError as error:
                self._refuse(slot, round, part_of(answer.tensors, "upload"), error)
                continue
            self.greeted.add(slot)
            self.answered.append(slot)
            for scores, score in zip((self.after_update, self.after_training), reported, strict=True):
                if score is not None:
                    scores[slot] = score
            yield slot, answer

    def _most(self, downloads: Mapping[ClientId, Any]) -> int:
        """Return how many numbers an answer may hold: what is uploaded is as long as the model, or as what was sent."""
        sent = [self._initial, *(messages.pack(download) for download in downloads.values())]
        longest = max((tensor.numel() for flat in sent for tensor in flat.values()), default=0)
        return most_numbers(self._upload, longest, self._constants["num_clients"])

    def _request(self, kind: str, round: int, slot: ClientId, download: Any) -> Envelope:
        header = {**self._constants, "attempt": self.attempt, "kind": kind, "round": round, "slot": slot}
        initial = {} if slot in self.greeted else below("initial", self._initial)
        return Envelope(header, {**below("download", messages.pack(download)), **initial})

    def _read(self, slot: ClientId, round: int, answer: Envelope) -> Any:
        if not answer.header.get("uploads"):
            return None
        flat = part_of(answer.tensors, "upload")
        try:
            upload = read_message(self._upload, flat, self._constants["limit"])
        except messages.MessageError as error:
            self._refuse(slot, round, flat, error)
            return None
        return upload

    def log_upload(self, round: int, slot: ClientId, upload: Any, fault: str | None) -> None:
        """Write into the audit log that an upload arrived, and whether it is used."""
        self._connections.note_upload(slot, round, messages.pack(upload), is_refused=fault is not None)

    def _refuse(self, slot: ClientId, round: int, flat: Flat, error: messages.MessageError) -> None:
        self.refused[slot] = str(error)
        self._connections.note_upload(slot, round, flat, is_refused=True)
