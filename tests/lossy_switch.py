"""A switch of Ethernet frames in user space, which delays and loses them: for kernels without netem.

    python lossy_switch.py PORT … --delay SECONDS --jitter SECONDS --loss SHARE --seed NUMBER
    python lossy_switch.py --plain PORT

Frames are read from and written to network interfaces: what is delayed and lost are packets, and TCP is the kernel's.
A frame that was delayed for longer than a later one comes after it, as on long ways. The second form lets the kernel
compute checksums and cut packets before an interface sends them: no hardware does it here.
"""

from __future__ import annotations

import argparse
import array
import fcntl
import heapq
import random
import select
import socket
import struct
import time
from itertools import count

EVERY_PROTOCOL = 3
OUTGOING = 4  # the kind of a frame that this machine sends
ETHTOOL_IOCTL, SET_CHECKSUMMING = 0x8946, 0x17
GROUP = 1  # the bit of an address by which frames go to all


def switch(ports: list[str], delay: float, jitter: float, loss: float, seed: int) -> None:
    """Pass frames on for ever."""
    doors = [_open(port) for port in ports]
    drawn = random.Random(seed)  # noqa: S311 - no secret
    places: dict[bytes, socket.socket] = {}  # by the address that was heard there
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    numbers = count()
    while True:
        pause = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for door in select.select(doors, [], [], pause)[0]:
            try:
                frame, (_, _, kind, *_) = door.recvfrom(65536)
            except OSError:  # the link went down
                continue
            if kind == OUTGOING:
                continue
            places[frame[6:12]] = door
            known = None if frame[0] & GROUP else places.get(frame[:6])
            for other in [known] if known is not None else doors:
                if other is not door and drawn.random() >= loss:
                    due = time.monotonic() + delay + jitter * drawn.uniform(-1, 1)
                    heapq.heappush(waiting, (due, next(numbers), other, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, door, frame = heapq.heappop(waiting)
            try:
                door.send(frame)
            except OSError:  # the link is down: what is sent there is lost
                continue


def _open(port: str) -> socket.socket:
    door = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(EVERY_PROTOCOL))
    door.bind((port, 0))
    return door


def leave_nothing_to_hardware(port: str) -> None:
    """Let an interface compute checksums before it sends."""
    value = array.array("B", struct.pack("II", SET_CHECKSUMMING, 0))
    request = struct.pack("16sP", port.encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, ETHTOOL_IOCTL, request)


def main() -> None:
    """Do what the command says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("ports", nargs="+")
    parser.add_argument("--plain", action="store_true")
    for name in ("delay", "jitter", "loss"):
        parser.add_argument(f"--{name}", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    if told.plain:
        leave_nothing_to_hardware(told.ports[0])
    else:
        switch(told.ports, told.delay, told.jitter, told.loss, told.seed)


if __name__ == "__main__":
    main()
