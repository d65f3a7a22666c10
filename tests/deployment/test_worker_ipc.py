from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfomo.deployment import worker_ipc
from fedfomo.deployment.worker_ipc import NoAnswerError, send

LATER = 1.5e9
WORKER = """
import os, sys
from pathlib import Path
from fedfomo.deployment.worker_ipc import receive

def handle(order, until):
    if order == b"die":
        os.kill(os.getpid(), 9)
    return order[::-1] if order != b"until" else str(until).encode()

receive(Path(sys.argv[1]), handle)
"""


@pytest.fixture
def worker() -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    with tempfile.TemporaryDirectory() as place:
        door = Path(place) / "worker"
        process = subprocess.Popen([sys.executable, "-c", WORKER, str(door)], env=dict(os.environ))
        yield door, process
        process.kill()
        process.wait()


def test_orders_are_carried_out_one_after_the_other(worker: tuple[Path, subprocess.Popen[bytes]]) -> None:
    large = os.urandom(5_000_000)
    assert send(worker[0], b"abc", LATER) == b"cba"
    assert send(worker[0], large, LATER) == large[::-1]
    assert send(worker[0], b"until", LATER) == b"1500000000.0"


def test_whoever_is_gone_in_the_midst_of_an_order_is_forgotten(worker: tuple[Path, subprocess.Popen[bytes]]) -> None:
    assert send(worker[0], b"abc", LATER) == b"cba"
    for heard in (b"", b"\0", (100).to_bytes(4, "big") + b"abc"):
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(str(worker[0]))
            caller.sendall(heard)
    assert send(worker[0], b"abc", LATER) == b"cba"


def test_a_worker_that_dies_over_an_order_is_reported(
    worker: tuple[Path, subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert send(worker[0], b"abc", LATER) == b"cba"
    with pytest.raises(NoAnswerError, match="died over the request"):
        send(worker[0], b"die", LATER)
    assert worker[1].wait(30) == -9
    monkeypatch.setattr(worker_ipc, "START", 0.3)
    with pytest.raises(NoAnswerError, match="does not start"):
        send(worker[0], b"abc", LATER)
