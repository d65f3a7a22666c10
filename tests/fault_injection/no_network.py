"""Run a command where there is no network, and say what it tried to send.

    unshare --map-root-user --net python tests/fault_injection/no_network.py (open | shut) COMMAND …

The surroundings have no interface but their own loopback, which is open or shut. The kernel counts what any process
within them, in whatever language, wanted to send and had no way to; the counts are printed as the last line.
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import subprocess
import sys
from pathlib import Path

SIOCSIFFLAGS, IFF_UP = 0x8914, 1


def open_loopback() -> None:
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def counters() -> dict[str, int]:
    """Return what was sent, or could not be."""
    lines = Path("/proc/net/snmp").read_text().splitlines()
    found: dict[str, int] = {}
    for names, values in zip(lines[::2], lines[1::2], strict=True):
        protocol, *words = names.split()
        found |= {protocol + word: int(value) for word, value in zip(words, values.split()[1:], strict=True)}
    found |= {name: int(value) for name, value in map(str.split, Path("/proc/net/snmp6").read_text().splitlines())}
    return {
        "turned away": found["Ip:OutNoRoutes"] + found["Ip6OutNoRoutes"],
        "connections": found["Tcp:ActiveOpens"],
        "datagrams": found["Udp:OutDatagrams"] + found["Udp6OutDatagrams"],
    }


if __name__ == "__main__":
    loopback, *command = sys.argv[1:]
    if loopback == "open":
        open_loopback()
    before = counters()
    code = subprocess.run(command).returncode
    print(json.dumps({name: number - before[name] for name, number in counters().items()}))  # noqa: T201
    sys.exit(code)
