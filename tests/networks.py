"""Networks that tests can hurt: namespaces of the kernel joined by a switch, and a proxy that breaks connections."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from federations import Tap

SERVER = "10.77.0.1"
SWITCH = Path(__file__).with_name("lossy_switch.py")


class Unavailable(Exception):  # noqa: N818 - no fault of anybody
    """Why this machine has no such network."""


class Network:
    """A network namespace for the server and one for each site, joined by a switch in a namespace of its own.

    Every frame takes so many seconds, more or less by the jitter, and a share of them is lost.
    """

    def __init__(self, sites: Sequence[str], delay: float = 0.0, jitter: float = 0.0, loss: float = 0.0) -> None:
        if os.geteuid() != 0 or shutil.which("ip") is None:
            raise Unavailable("network namespaces need root and iproute2")
        self._mark = f"ff{os.getpid()}"
        self._ends = {name: f"v{number}" for number, name in enumerate(["server", *sites])}
        self._made: list[str] = []
        self._switch: subprocess.Popen[bytes] | None = None
        try:
            self._namespace("switch")
            for number, (name, end) in enumerate(self._ends.items()):
                self._add(name, end, f"10.77.0.{number + 1}/24")
        except subprocess.CalledProcessError as error:
            self.close()
            raise Unavailable(f"this kernel refuses network namespaces: {error.stderr.strip()}") from None
        how = ["--delay", str(delay), "--jitter", str(jitter), "--loss", str(loss)]
        command = [*self.within("switch"), sys.executable, str(SWITCH), *self._ends.values(), *how]
        self._switch = subprocess.Popen(command)

    def within(self, name: str) -> list[str]:
        """Return what a command has to begin with to run at a place."""
        return ["ip", "netns", "exec", self._of(name)]

    def cut(self, name: str) -> None:
        """Take the link of a place down."""
        self._run("ip", "-n", self._of("switch"), "link", "set", self._ends[name], "down")

    def join(self, name: str) -> None:
        """Take it up again."""
        self._run("ip", "-n", self._of("switch"), "link", "set", self._ends[name], "up")

    def flap(self, name: str, times: int, seconds: float) -> None:
        """Take a link down and up again, several times."""
        for _ in range(times):
            self.cut(name)
            time.sleep(seconds)
            self.join(name)
            time.sleep(seconds)

    def seconds_to_connect(self, name: str, port: int) -> float:
        """Return how long a place takes to connect to the server: a packet there, and one back."""
        script = (
            "import socket, time; began = time.monotonic();"
            f" socket.create_connection(('{SERVER}', {port})); print(time.monotonic() - began)"
        )
        return float(self._run(*self.within(name), sys.executable, "-c", script))

    def packets_sent_again(self, name: str) -> int:
        """Return how many packets of a place TCP has sent again, for they were lost or late."""
        names, numbers = (
            line.split()
            for line in self._run(*self.within(name), "cat", "/proc/net/snmp").splitlines()
            if line.startswith("Tcp:")
        )
        return int(numbers[names.index("RetransSegs")])

    def close(self) -> None:
        """Undo all."""
        has_died = self._switch is not None and self._switch.poll() is not None
        if self._switch is not None:
            self._switch.kill()
            self._switch.wait()
        for namespace in self._made:
            with suppress(subprocess.CalledProcessError):
                self._run("ip", "netns", "del", namespace)
        assert not has_died, "the switch died"

    def _of(self, name: str) -> str:
        return f"{self._mark}-{name}"

    def _namespace(self, name: str) -> None:
        self._run("ip", "netns", "add", self._of(name))
        self._made.append(self._of(name))
        self._run("ip", "-n", self._of(name), "link", "set", "lo", "up")

    def _add(self, name: str, end: str, address: str) -> None:
        self._namespace(name)
        namespace, switch = self._of(name), self._of("switch")
        self._run("ip", "-n", switch, "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        self._run("ip", "-n", switch, "link", "set", end, "up")
        self._run("ip", "-n", namespace, "address", "add", address, "dev", "eth0")
        self._run("ip", "-n", namespace, "link", "set", "eth0", "up")
        self._run(*self.within(name), sys.executable, str(SWITCH), "--plain", "eth0")

    def _run(self, *command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class BreakingProxy(Tap):
    """Breaks off some of the connections that pass through it: other than lost packets, TCP does not mend that."""

    def __init__(self, to: str, share: float, seed: int = 0) -> None:
        self._share = share  # of pieces at which the connection is broken off
        self._drawn = random.Random(seed)  # noqa: S311 - no secret
        self.breaks = 0
        super().__init__(to)

    def received(self, content: bytes) -> None:
        if self._drawn.random() < self._share:
            self.breaks += 1
            raise ConnectionAbortedError
