"""The server's post: orders go to sites sealed, answers come back checked, and every model that leaves is logged."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedfomo.client import ClientId
from fedfomo.flower.carriage import NONCE, PROOF, SITE, content_of, record_of
from fedfomo.flower.checks import ECHOED, require_header
from fedfomo.flower.delivery_log import DeliveryLog, Owners
from fedfomo.flower.parcels import Parcel, digest_of
from fedfomo.flower.sealing import Sealer, SealError
from fedfomo.flower.settings import FederationFolder, Site
from fedfomo.wire import Flat, WireError

POLL = 0.2  # seconds between looks for answers
INTRODUCTION = 60.0  # seconds that a stranger has to say who it is
AGAIN = 300.0  # seconds before it is asked again

log = logging.getLogger(__name__)


class Post:
    """Everything between the server and Flower's grid."""

    def __init__(self, grid: Grid, folder: FederationFolder) -> None:
        self.faults: dict[ClientId, str] = {}  # of the last call: who did not answer well, and why
        self.bytes_sent = 0  # likewise
        self.bytes_received = 0
        self.deliveries = DeliveryLog(folder.deliveries)
        self._grid = grid
        self._folder = folder
        self._sealer = Sealer.read(folder.server / "sealing.key")
        self._introduced: dict[int, str] = {}  # nodes that proved who they are, by their id
        self._asked: dict[int, float] = {}  # when strangers may be asked again
        self._owners = Owners()
        for record in self.deliveries.records():  # what was uploaded before a restart
            if record["event"] == "received":
                self._owners.note(record["from"], record["models"].values())

    def online(self) -> dict[ClientId, int]:
        """Return the nodes of the sites that are there now; the registry is read anew, since sites may join."""
        sites = self._folder.registry()
        names = {site.key.strip(): site.name for site in sites}
        nodes = {node.node_id: names.get(node.public_key.decode(errors="replace").strip()) for node in self._nodes()}
        strangers = [node for node, name in nodes.items() if name is None and self._is_new(node)]
        if strangers:
            self._meet(strangers, {site.name: site for site in sites})
        slots = {site.name: site.slot for site in sites}
        found = {node: name or self._introduced.get(node) for node, name in nodes.items()}
        return {slots[name]: node for node, name in sorted(found.items()) if name in slots}

    def names(self) -> dict[ClientId, str]:
        """Return the sites' names by slot."""
        return {site.slot: site.name for site in self._folder.registry()}

    def ask(
        self, orders: Iterable[tuple[ClientId, Parcel]], nodes: Mapping[ClientId, int], seconds: float
    ) -> Iterator[tuple[ClientId, Parcel]]:
        """Send every order and yield good answers until all are there or time is up; no answer counts later."""
        self.faults, self.bytes_sent, self.bytes_received = {}, 0, 0
        sites = {site.slot: site for site in self._folder.registry()}
        closes = time.monotonic() + seconds
        waiting: dict[str, tuple[ClientId, Parcel]] = {}
        for slot, order in orders:
            message_id = self._send(sites[slot], nodes[slot], order, closes)
            waiting[message_id] = slot, Parcel(order.header, {})
        while waiting and time.monotonic() < closes:
            for reply in self._grid.pull_messages(list(waiting)):
                # A dead node's error comes from the SuperLink: only the message it replies to tells whose it is.
                slot, order = waiting.pop(reply.metadata.reply_to_message_id)
                answer = self._open(sites[slot], order, reply)
                if answer is not None:
                    yield slot, answer
            time.sleep(POLL if waiting else 0)
        for slot, _ in waiting.values():
            self._note(sites[slot], f"no answer within {seconds:.0f} s")

    def note_upload(self, slot: ClientId, round: int, models: Flat) -> None:
        """Log whose model arrived, so that deliveries can say whose they were."""
        name = self.names()[slot]
        hashes = _hashes(models)
        self._owners.note(name, hashes.values())
        self.deliveries.add({"event": "received", "round": round, "from": name, "models": hashes})

    def _send(self, site: Site, node: int, order: Parcel, closes: float) -> str:
        sealed = self._sealer.seal(site.seal, order.to_bytes(order.header["bits"]))
        hashes = _hashes(order.tensors)
        header = {name: order.header[name] for name in ("round", "attempt", "kind")}
        self.deliveries.add(
            {"event": "sent", **header, "to": site.name, "models": hashes, "of": self._owners.of(hashes)}
        )
        left = max(1.0, closes - time.monotonic())
        record = record_of(sealed)
        message = Message(record, node, MessageType.TRAIN, ttl=left, group_id=str(order.header["round"]))
        self.bytes_sent += len(sealed)
        (message_id,) = self._grid.push_messages([message])
        return message_id

    def _open(self, site: Site, order: Parcel, reply: Message) -> Parcel | None:
        if reply.has_error():
            self._note(site, f"{reply.error.reason or 'failed'} (code {reply.error.code})")
            return None
        try:
            sealed = content_of(reply.content)
            self.bytes_received += len(sealed)
            answer = Parcel.read(self._sealer.open(site.seal, sealed))
            require_header(answer.header, {name: order.header[name] for name in ECHOED})
        except (SealError, WireError) as error:
            self._note(site, str(error))
            return None
        if "fault" in answer.header:
            self._note(site, str(answer.header["fault"]))
            return answer if answer.header.get("is_lost") else None
        return answer

    def _note(self, site: Site, fault: str) -> None:
        log.warning("%s: %s", site.name, fault)
        self.faults[site.slot] = fault

    def _nodes(self) -> list[Any]:
        return list(self._grid.get_nodes())

    def _is_new(self, node: int) -> bool:
        """Tell whether a node should be asked who it is: one that did not say is left alone for a while."""
        now = time.monotonic()
        is_due = node not in self._introduced and now >= self._asked.get(node, now)
        if is_due:
            self._asked[node] = now + AGAIN
        return is_due

    def _meet(self, nodes: list[int], sites: Mapping[str, Site]) -> None:
        """Ask nodes whose keys are not known who they are; a seal over a fresh nonce proves it."""
        nonce = secrets.token_bytes(32)
        question = RecordDict({NONCE: ConfigRecord({NONCE: nonce})})
        messages = [Message(question, node, MessageType.QUERY, ttl=INTRODUCTION) for node in nodes]
        for reply in self._grid.send_and_receive(messages, timeout=INTRODUCTION):
            if reply.has_error():
                continue
            claim: Any = reply.content.config_records.get(PROOF, {})
            site = sites.get(str(claim.get(SITE)))
            try:
                if site and self._sealer.open(site.seal, bytes(claim[PROOF])) == nonce:
                    self._introduced[reply.metadata.src_node_id] = site.name
            except SealError:
                log.warning("a node says that it is %s, and is not", site and site.name)


def _hashes(models: Flat) -> dict[str, str]:
    return {name: digest_of(tensor) for name, tensor in models.items() if tensor.dtype == torch.float32}
