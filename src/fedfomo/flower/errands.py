"""Errands between the process that Flower starts for a message and the worker that stays: bytes over a local socket."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path

START = 60.0  # seconds that a worker has to start


class WorkerLostError(RuntimeError):
    """The worker died over an order, or never started."""


def send(socket: Path, order: bytes) -> bytes:
    """Let the worker carry out an order."""
    closes = time.monotonic() + START
    while True:
        try:
            with Client(str(socket), "AF_UNIX") as worker:
                worker.send_bytes(order)
                return worker.recv_bytes()
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > closes:
                raise WorkerLostError("the site's worker does not start; its log says why") from None
            time.sleep(0.1)
        except (EOFError, ConnectionResetError):
            raise WorkerLostError("the site's worker died over the order; memory may have run out") from None


def receive(socket: Path, carry_out: Callable[[bytes], bytes]) -> None:
    """Carry out orders, one by one, for ever."""
    socket.unlink(missing_ok=True)
    with Listener(str(socket), "AF_UNIX") as door:
        while True:
            with door.accept() as sender:
                try:
                    sender.send_bytes(carry_out(sender.recv_bytes()))
                except (EOFError, BrokenPipeError, ConnectionResetError):
                    continue  # whoever asked is gone
