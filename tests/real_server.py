"""A real SuperLink with a run of ours on it, and sites that are threads of this process, honest or not.

Everything between them is Flower, TLS and keys as ever. Threads in place of processes start at once and can be told to
misbehave.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from federations import Federation, peak_megabytes
from fedfomo.deployment.fleet_connection import FleetConnection
from fedfomo.deployment.resident_node import ResidentNode
from fedfomo.deployment.settings import SiteFolder
from fedfomo.deployment.site_client import Worker


class NodeOf(ResidentNode):
    """The node of a site, with a connection of some kind."""

    def __init__(self, site: SiteFolder, kind: type[FleetConnection], stop: threading.Event) -> None:
        self.said: list[str] = []
        super().__init__(site, Worker(site, None).handle, self.said.append, stop)
        self._kind = kind

    def connect(self) -> FleetConnection:
        return self._kind(self._site)


class ThreadedFederation(Federation):
    """A federation whose sites are threads."""

    def __init__(self, place: Path, *settings: str, **more: Any) -> None:
        super().__init__(place, *settings, **more)
        self.nodes: dict[str, NodeOf] = {}
        self.peaks: dict[str, float] = {}  # the most memory of the server's processes
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def join(self, kinds: Mapping[str, type[FleetConnection]]) -> None:
        """Start sites by their names, each with a connection of some kind."""
        for name, kind in kinds.items():
            self.nodes[name] = NodeOf(self.site(name), kind, self._stop)
            self._threads.append(threading.Thread(target=self.nodes[name].run, daemon=True))
            self._threads[-1].start()

    def wait(self) -> str:
        with peak_megabytes(self.folder) as self.peaks:
            return super().wait()

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        super().close()


@contextmanager
def threaded(place: Path, *settings: str, **more: Any) -> Iterator[ThreadedFederation]:
    made = ThreadedFederation(place, *settings, **more)
    try:
        yield made
    finally:
        made.close()
