"""The server's post: orders go to sites sealed, answers come back checked, and every model that leaves is logged."""

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
from flwr.serverapp import Grid

from fedfomo.core.client import ClientId
from fedfomo.core.messages import Flat, MessageError
from fedfomo.deployment.audit_log import DeliveryLog, ModelProvenance
from fedfomo.deployment.encryption import MessageCipher, Purpose, SealError
from fedfomo.deployment.envelopes import Envelope, Header, digest_of, most_bytes
from fedfomo.deployment.flower_records import NONCE, PROOF, SITE, content_of, record_of
from fedfomo.deployment.reply_polling import ReplyError, ReplyPoller
from fedfomo.deployment.sanitise import printable
from fedfomo.deployment.settings import FederationFolder, Site
from fedfomo.deployment.validation import ECHOED, require_header, require_parts

INTRODUCTION = 60.0  # seconds that a stranger has to say who it is
AGAIN = 300.0  # seconds before it is asked again

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Asked:
    """A site that was sent an order, what its answer has to repeat of the order's header, and how much it may hold."""

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
        self._sealer = MessageCipher.read(folder.server / "sealing.key")
        self._introduced: dict[int, str] = {}  # nodes that proved who they are, by their id
        self._asked: dict[int, float] = {}  # when strangers may be asked again
        self._owners = ModelProvenance()
        for record in self.deliveries.records():  # what was uploaded before a restart
            if record.get("event") == "received":
                self._owners.note(record["from"], record["models"].values())

    def online(self) -> dict[ClientId, int]:
        """Return the nodes of the sites that are there now; the registry is read anew: sites may join, or leave."""
        sites = self._folder.members()
        names = {site.key.strip(): site.name for site in self._folder.registry()}
        nodes = {node.node_id: names.get(node.public_key.decode(errors="replace").strip()) for node in self._nodes()}
        strangers = [node for node, name in nodes.items() if name is None and self._is_new(node)]
        if strangers:
            self._authenticate(strangers, {site.name: site for site in sites})
        slots = {site.name: site.slot for site in sites}
        found = {node: name or self._introduced.get(node) for node, name in nodes.items()}
        return {slots[name]: node for node, name in sorted(found.items()) if name in slots}

    def names(self) -> dict[ClientId, str]:
        """Return the sites' names by slot, also of those that have left."""
        return _Names({site.slot: site.name for site in self._folder.registry()})

    def ask(
        self, orders: Iterable[tuple[ClientId, Envelope]], nodes: Mapping[ClientId, int], seconds: float, most: int
    ) -> Iterator[tuple[ClientId, Envelope]]:
        """Send every order and yield good answers, which hold no more numbers than they may.

        Each site has so many seconds, and no answer counts later.
        """
        self.faults, self.bytes_sent, self.bytes_received = {}, 0, 0
        sites = {site.slot: site for site in self._folder.members()}
        letters = ReplyPoller[_Asked, bytes](self._grid, seconds, content_of)
        for slot, order in orders:
            if slot not in sites:
                continue  # it has left since
            message = self._message(sites[slot], nodes[slot], order, seconds)
            asked = _Asked(sites[slot], {name: order.header[name] for name in ECHOED}, most)
            yield from self._good(letters.send(message, asked))
        yield from self._good(letters.wait())

    def note_upload(self, slot: ClientId, round: int, models: Flat, is_refused: bool) -> None:
        """Log whose model arrived, so that deliveries can say whose they were; one that is refused is never sent."""
        name = self.names()[slot]
        hashes = _hashes(models)
        if not is_refused:
            self._owners.note(name, hashes.values())
        event = "refused" if is_refused else "received"
        self.deliveries.add({"event": event, "round": round, "from": name, "models": hashes})

    def _message(self, site: Site, node: int, order: Envelope, seconds: float) -> Message:
        sealed = self._sealer.seal(site.seal, order.to_bytes(order.header["bits"]), Purpose.ORDER)
        hashes = _hashes(order.tensors)
        header = {name: order.header[name] for name in ("round", "attempt", "kind")}
        self.deliveries.add(
            {"event": "sent", **header, "to": site.name, "models": hashes, "of": self._owners.of(hashes)}
        )
        self.bytes_sent += len(sealed)
        return Message(record_of(sealed), node, MessageType.TRAIN, ttl=seconds, group_id=str(order.header["round"]))

    def _good(self, replies: Iterator[tuple[_Asked, bytes | ReplyError]]) -> Iterator[tuple[ClientId, Envelope]]:
        """Yield the answers that can be used, and note what is wrong with the others."""
        for asked, reply in replies:
            try:
                answer = self._open(asked, reply)
            except (ReplyError, SealError, MessageError) as error:
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
        answer = Envelope.read(self._sealer.open(asked.site.seal, reply, Purpose.ANSWER), asked.most)
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
        letters = ReplyPoller[int, Any](self._grid, INTRODUCTION, _claim_in)
        messages = [Message(question, node, MessageType.QUERY, ttl=INTRODUCTION) for node in nodes]
        sent = (letters.send(message, node) for message, node in zip(messages, nodes, strict=True))
        for node, claim in chain(chain.from_iterable(sent), letters.wait()):
            try:
                self._introduced[node] = self._proven(claim, nonce, sites)
            except SealError as error:
                log.warning("a node does not show who it is: %s", printable(str(error)))

    def _proven(self, claim: Any, nonce: bytes, sites: Mapping[str, Site]) -> str:
        """Return the name of the site that claims to be one; refuse a claim without proof."""
        if isinstance(claim, ReplyError):
            raise SealError(str(claim))
        site, proof = sites.get(str(claim.get(SITE))), claim.get(PROOF)
        if site is None or not isinstance(proof, bytes):
            raise SealError("it names no site, or brings no proof")
        if self._sealer.open(site.seal, proof, Purpose.INTRODUCTION) != nonce:
            raise SealError(f"it says that it is {site.name}, and is not")
        return site.name


def _claim_in(content: RecordDict) -> Any:
    return content.config_records.get(PROOF) or {}


class _Names(dict[ClientId, str]):
    """Names by slot; a site that somebody struck from the registry by hand is called by its slot."""

    def __missing__(self, slot: ClientId) -> str:
        return f"site {slot}"


def _hashes(models: Flat) -> dict[str, str]:
    return {name: digest_of(tensor) for name, tensor in models.items() if tensor.dtype == torch.float32}
