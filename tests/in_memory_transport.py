"""A federation within this process: the server's code and the sites' code as they are, and nothing of Flower between.

`Loopback` stands in for the SuperLink and its nodes: it hands messages over at once. What it can be told to do to
them (lose, delay, replace) are the things that happen between machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Error, Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file
from torch import Tensor

from fedfomo.core.local_training import Sgd
from fedfomo.deployment.flower_grid import Announcement
from fedfomo.deployment.flower_records import content_of, record_of
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.server_run import serve
from fedfomo.deployment.settings import FederationConfig, FederationFolder, SiteFolder
from fedfomo.deployment.site_client import Worker

MODEL = """
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(2, 600), nn.ReLU(), nn.Linear(600, 3))
"""

DATA = """
from toy_problems import points
from fedfomo.core.rng import stream


def load_data(folder, site):
    rng = stream(7, "points", site)
    return tuple(points(size, len(site), rng) for size in (12, 4, 4))
"""

TRAINING = Sgd(batch_size=5, epochs=1)

Answer = Callable[[bytes], Any]
Change = Callable[[str, int, bytes, Answer], Any]
"""From site, number of the message and its bytes to the answer's bytes, an Error, or None for no answer.

An exception in place of an answer is what Flower raises when it cannot put the message together again.
"""


def honest(site: str, number: int, order: bytes, answer: Answer) -> Any:
    return answer(order)


def make_federation(
    place: Path, names: Iterable[str] = ("leeds", "turin", "lyon"), **settings: Any
) -> FederationFolder:
    names = list(names)
    given = {
        "method": "fedfomo",
        "rounds": 2,
        "min_clients": 1,
        "max_sites": len(names),
        "startup_timeout": 0.01,
        "deadline": 5.0,
        **settings,
    }
    folder = FederationFolder(place / "federation")
    provision(folder, names, FederationConfig(training=TRAINING, **given))
    folder.model.write_text(MODEL)
    for name in names:
        equip(folder, name)
    return folder


def equip(folder: FederationFolder, name: str) -> None:
    """Write the two files that are a site's own."""
    site = SiteFolder(folder.sites / name)
    site.model.write_text(MODEL)
    site.data.write_text(DATA)


class Loopback:
    """Hands messages over within this process."""

    def __init__(self, folder: FederationFolder, change: Change = honest) -> None:
        self.orders: list[tuple[str, bytes]] = []  # all that was sent, encrypted
        self.away: set[str] = set()  # sites that are not on line
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = (
            1  # as Flower does in the processes that it starts
        )
        self._folder = folder
        self._change = change
        self._replies: dict[str, Message | Exception] = {}
        self._pieces: dict[str, bytes] = {}
        self._number = 0
        self._workers: dict[str, Worker] = {}

    def node_of(self, name: str) -> int:
        return 10**15 + next(site.slot for site in self._folder.registry() if site.name == name)

    def get_nodes(self) -> Iterable[Any]:
        sites = [site for site in self._folder.registry() if site.name not in self.away]
        return [SimpleNamespace(node_id=self.node_of(site.name), public_key=site.key.encode()) for site in sites]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._deliver(message) for message in messages]

    def announced(self, message_id: str) -> Announcement | None:
        reply = self._replies.pop(message_id, None)
        if isinstance(reply, Exception):
            raise reply
        if reply is None:
            return None
        pieces = {name: piece.deflate() for name, piece in get_all_nested_objects(reply).items()}
        self._pieces.update(pieces)
        return Announcement(list(pieces))

    def piece(self, name: str, most: int) -> bytes | None:
        return self._pieces[name]

    def confirm(self, announcement: Announcement) -> None:
        for name in announcement.pieces:
            self._pieces.pop(name, None)

    def _deliver(self, message: Message) -> str:
        self._number += 1
        name = f"message-{self._number}"
        message.metadata.__dict__["_message_id"] = name
        names = {self.node_of(site.name): site.name for site in self._folder.registry()}
        site = names[message.metadata.dst_node_id]
        order = content_of(message.content)
        self.orders.append((site, order))
        answer = self._change(site, self._number, order, self.worker(site).handle)
        if isinstance(answer, Error):
            # As the SuperLink does for a dead node: it comes from nobody.
            reply = Message(answer, reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
            self._replies[name] = reply
        elif isinstance(answer, Exception):
            self._replies[name] = answer
        elif answer is not None:
            self._replies[name] = Message(record_of(answer), reply_to=message)
        return name

    def worker(self, site: str) -> Worker:
        if site not in self._workers:
            self._workers[site] = Worker(SiteFolder(self._folder.sites / site), None)
        return self._workers[site]


def run_federation(folder: FederationFolder, change: Change = honest) -> dict[str, dict[str, Tensor]]:
    """Run a federation to its end and return the sites' models."""
    serve(Loopback(folder, change), folder)
    return models_of(folder)


def models_of(folder: FederationFolder) -> dict[str, dict[str, Tensor]]:
    names = [site.name for site in folder.registry()]
    sites = {name: SiteFolder(folder.sites / name, folder.experiment) for name in names}
    paths = {name: site.models / "personalised.safetensors" for name, site in sites.items()}
    return {name: load_file(path) for name, path in paths.items() if path.exists()}
