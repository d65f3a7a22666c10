"""Requests from the process that Flower starts for a message to the worker that stays: bytes over a local socket."""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path

from fedfomo.deployment.encryption import DecryptionError

TIME = struct.Struct("<d")  # until when a request's answer is wanted
START = 60.0  # seconds that a worker has to start
REFUSED = b""  # in place of an answer, which is encrypted and so never empty

log = logging.getLogger(__name__)


class NoAnswerError(RuntimeError):
    """The worker died over a request, or never started."""


class RefusedError(RuntimeError):
    """The worker found no request of the server in what it was given."""


def send(socket: Path, request: bytes, until: float) -> bytes:
    """Let the worker carry out a request, of which it may have others to do first, if it is wanted still."""
    closes = time.monotonic() + START
    while True:
        try:
            with Client(str(socket), "AF_UNIX") as worker:
                worker.send_bytes(TIME.pack(until))
                worker.send_bytes(request)
                answer = worker.recv_bytes()
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > closes:
                raise NoAnswerError("the site's worker does not start; its log says why") from None
            time.sleep(0.1)
        except (EOFError, ConnectionResetError):
            raise NoAnswerError("the site's worker died over the request; memory may have run out") from None
        else:
            if answer == REFUSED:
                raise RefusedError("the site's worker refuses the request; its log says why")
            return answer


def receive(socket: Path, handle: Callable[[bytes, float], bytes]) -> None:
    """Carry out requests, one by one, for ever; what is no request of the server is logged and refused."""
    socket.unlink(missing_ok=True)
    with Listener(str(socket), "AF_UNIX") as door:
        while True:
            with door.accept() as sender:
                try:
                    (until,) = TIME.unpack(sender.recv_bytes())
                    request = sender.recv_bytes()
                except (EOFError, OSError, struct.error):
                    continue  # whoever asked is gone, perhaps in the midst of it
                answer = _answer(request, until, handle)
                with suppress(BrokenPipeError, ConnectionResetError):
                    sender.send_bytes(answer)


def _answer(request: bytes, until: float, handle: Callable[[bytes, float], bytes]) -> bytes:
    try:
        return handle(request, until)
    except DecryptionError as error:
        log.warning("a request is refused: %s", error)
        return REFUSED
