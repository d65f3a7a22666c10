"""The server's messages to sites: encrypted requests out, checked answers in, and every model logged."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from fedfomo.core.client import ClientId
from fedfomo.core.messages import Flat, MessageError
from fedfomo.deployment.audit_log import DeliveryLog, ModelProvenance
from fedfomo.deployment.encryption import DecryptionError, MessageCipher, Purpose
from fedfomo.deployment.flower_grid import MessageGrid
from fedfomo.deployment.flower_records import GRACE, NONCE, PROOF, SITE, content_of, record_of
from fedfomo.deployment.protocol import (
    ECHOED,
    Envelope,
    Header,
    digest_of,
    most_bytes,
    require_header,
    require_parts,
)
from fedfomo.deployment.replies import DroppingGrid, ReplyError, ReplyPoller
from fedfomo.deployment.settings import FederationFolder, Site
from fedfomo.io import printable

INTRODUCTION = 60.0  # seconds that a stranger has to say who it is
AGAIN = 300.0  # seconds before it is asked again
MOST_NAMES = 20  # of tensors in a refused upload that are logged
PROOF_BYTES = 2**16  # of an introduction

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Asked:
    """A site that was sent a request, what its answer has to repeat of the header, and how much it may hold."""

    site: Site
    echoed: Header
    most: int  # numbers in its answer


class SiteConnections:
    """Everything between the server and Flower's grid."""

    def __init__(self, grid: MessageGrid, folder: FederationFolder) -> None:
        self.faults: dict[ClientId, str] = {}  # of the last call: who did not answer well, and why
        self.bytes_sent = 0  # likewise
        self.bytes_received = 0
        self.deliveries = DeliveryLog(folder.deliveries, folder.has_run)
        self._grid = grid
        self._replies = DroppingGrid(grid)
        self._folder = folder
        self._cipher = MessageCipher.read(folder.server / "sealing.key")
        self._introduced: dict[int, str] = {}  # nodes that proved who they are, by their id
        self._asked: dict[int, float] = {}  # when unknown nodes may be asked again
        self._owners = ModelProvenance()
        self.latest_attempt = 0
        for record in self.deliveries.records():  # what was sent and uploaded before a restart
            self.latest_attempt = max(self.latest_attempt, record.get("attempt", 0))
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
        replies = ReplyPoller[_Asked, bytes](self._replies, seconds, most_bytes(most), content_of)
        for slot, request in requests:
            if slot not in sites:
                continue  # it has left since
            message = self._message(sites[slot], nodes[slot], request, seconds)
            asked = _Asked(sites[slot], {name: request.header.get(name) for name in ECHOED}, most)
            yield from self._good(replies.send(message, asked))
        yield from self._good(replies.wait())

    def note_start(self, models: Mapping[ClientId, Tensor]) -> None:
        """Take down whose the models are that sites start from."""
        for slot, model in models.items():
            self._owners.note(self.names()[slot], [digest_of(model)])

    def note_upload(self, slot: ClientId, round: int, models: Flat, is_refused: bool) -> None:
        """Log whose model arrived, so that deliveries can say whose they were; one that is refused is never sent."""
        name = self.names()[slot]
        hashes = _hashes(models)
        if is_refused:
            hashes = _shortened(hashes)
        else:
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
            record_of(encrypted), node, MessageType.TRAIN, ttl=seconds + GRACE, group_id=str(request.header["round"])
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
        replies = ReplyPoller[int, Any](self._replies, INTRODUCTION, PROOF_BYTES, _claim_in)
        messages = [Message(question, node, MessageType.QUERY, ttl=INTRODUCTION + GRACE) for node in nodes]
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


def _shortened(hashes: dict[str, str]) -> dict[str, str]:
    """Cut names that a site chose, and their number, so that what is refused does not fill the log."""
    few = {printable(name): found for name, found in list(hashes.items())[:MOST_NAMES]}
    return few if len(hashes) <= MOST_NAMES else {**few, f"and {len(hashes) - MOST_NAMES:,} more": ""}


def _hashes(models: Flat) -> dict[str, str]:
    return {name: digest_of(tensor) for name, tensor in models.items() if tensor.dtype == torch.float32}
