"""Networks that tests can hurt: namespaces of the kernel joined by a bridge, and a proxy that delays and breaks off."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

from federations import Tap

SERVER = "10.77.0.1"


class Unavailable(Exception):  # noqa: N818 - no fault of anybody
    """Why this machine has no such network."""


class Network:
    """A network namespace for the server and one for each site, all on one bridge in a namespace of its own."""

    def __init__(self, sites: Sequence[str]) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Unavailable("network namespaces need root and iproute2")
        self._mark = f"ff{os.getpid()}"
        self._switch = f"{self._mark}-switch"
        self._ends = {name: f"v{number}" for number, name in enumerate(["server", *sites])}
        self._made: list[str] = []
        try:
            self._namespace(self._switch)
            self._run("ip", "-n", self._switch, "link", "add", "bridge", "type", "bridge")
            self._run("ip", "-n", self._switch, "link", "set", "bridge", "up")
            for number, (name, end) in enumerate(self._ends.items()):
                self._join(name, end, f"10.77.0.{number + 1}/24")
        except subprocess.CalledProcessError as error:
            self.close()
            raise Unavailable(f"this kernel refuses network namespaces: {error.stderr.strip()}") from None

    def within(self, name: str) -> list[str]:
        """Return what a command has to begin with to run at a place."""
        return ["ip", "netns", "exec", self._of(name)]

    def cut(self, name: str) -> None:
        """Take the link of a place down."""
        self._run("ip", "-n", self._switch, "link", "set", self._ends[name], "down")

    def join(self, name: str) -> None:
        """Take it up again."""
        self._run("ip", "-n", self._switch, "link", "set", self._ends[name], "up")

    def flap(self, name: str, times: int, seconds: float) -> None:
        """Take a link down and up again, several times."""
        for _ in range(times):
            self.cut(name)
            time.sleep(seconds)
            self.join(name)
            time.sleep(seconds)

    def impair(self, name: str, *how: str) -> None:
        """Delay or lose packets on a link, by netem."""
        try:
            self._run("tc", "-n", self._switch, "qdisc", "add", "dev", self._ends[name], "root", "netem", *how)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            said = getattr(error, "stderr", str(error)).strip()
            raise Unavailable(f"this kernel has no netem, which delays and loses packets: {said}") from None

    def close(self) -> None:
        """Undo all."""
        for namespace in self._made:
            with suppress(subprocess.CalledProcessError):
                self._run("ip", "netns", "del", namespace)

    def _of(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _namespace(self, name: str) -> None:
        self._run("ip", "netns", "add", name)
        self._made.append(name)
        self._run("ip", "-n", name, "link", "set", "lo", "up")

    def _join(self, name: str, end: str, address: str) -> None:
        namespace = self._of(name)
        self._namespace(namespace)
        peer = ["peer", "name", "eth0", "netns", namespace]
        self._run("ip", "-n", self._switch, "link", "add", end, "type", "veth", *peer)
        self._run("ip", "-n", self._switch, "link", "set", end, "master", "bridge")
        self._run("ip", "-n", self._switch, "link", "set", end, "up")
        self._run("ip", "-n", namespace, "address", "add", address, "dev", "eth0")
        self._run("ip", "-n", namespace, "link", "set", "eth0", "up")

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, capture_output=True, text=True)


class SlowProxy(Tap):
    """Passes on what comes after a delay, and breaks off some connections: no lost packets, which TCP would mend."""

    def __init__(self, to: str, seconds: float, broken: float, seed: int = 0) -> None:
        self._seconds = seconds
        self._broken = broken  # share of pieces at which the connection is broken off
        self._drawn = random.Random(seed)  # noqa: S311 - no secret
        self.breaks = 0
        super().__init__(to)

    def received(self, content: bytes) -> None:
        time.sleep(self._seconds)
        if self._drawn.random() < self._broken:
            self.breaks += 1
            raise ConnectionAbortedError
