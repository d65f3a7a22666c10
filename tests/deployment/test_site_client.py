"""The process that does a site's work."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.protocol import Envelope
from fedfomo.deployment.settings import SITE_VARIABLE, WORKER_VARIABLE, SiteFolder
from fedfomo.deployment.worker_ipc import RefusedError, send
from in_memory_transport import make_federation


def test_what_the_server_did_not_seal_is_logged_and_survived(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    site, stranger = SiteFolder(folder.sites / "leeds"), MessageCipher.read(folder.sites / "lyon" / "sealing.key")
    server, leeds = MessageCipher.read(folder.server / "sealing.key"), MessageCipher.read(site.seal).public_key
    order = Envelope({}, {}).to_bytes()
    with tempfile.TemporaryDirectory() as place:  # the names of sockets are short
        door = Path(place) / "worker"
        around = {**os.environ, SITE_VARIABLE: str(site.path), WORKER_VARIABLE: str(door)}
        worker = subprocess.Popen([sys.executable, "-m", "fedfomo.deployment.site_client"], env=around)
        try:
            for forged in (b"", b"no seal at all", stranger.encrypt(leeds, order, Purpose.REQUEST)):
                with pytest.raises(RefusedError, match="its log says why"):
                    send(door, forged, math.inf)
            answer = Envelope.read(
                server.decrypt(
                    leeds, send(door, server.encrypt(leeds, order, Purpose.REQUEST), math.inf), Purpose.ANSWER
                )
            )
            assert "federation" in answer.header["fault"]  # the worker read this one, and found it empty
            assert worker.poll() is None
        finally:
            worker.kill()
            worker.wait()
    assert (site.path / "site.log").read_text().count("a request is refused: it was not sealed by its sender") == 3
