"""What Prometheus reads, and logs that do not grow for ever."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fedfomo.deployment import site_status, status
from fedfomo.deployment.metrics import exposition, metrics_endpoint
from fedfomo.deployment.settings import SiteFolder
from fedfomo.deployment.subprocesses import rotate
from in_memory_transport import make_federation, run_federation


def _read(port: int, path: str = "/metrics") -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.split() for line in lines if not line.startswith("#"))}


def test_a_federation_and_a_site_are_measured(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    site = SiteFolder(folder.sites / "leeds")
    with metrics_endpoint(0, lambda: status.facts(folder)) as port:
        assert _read(port) == {"fedfomo_is_finished": 0, "fedfomo_problems": 0}
        run_federation(folder)
        found = _read(port)
        assert found["fedfomo_rounds_done"] == found["fedfomo_rounds"] == 2
        assert found["fedfomo_asked"] == found["fedfomo_answered"] == 3
        assert (found["fedfomo_is_finished"], found["fedfomo_faults"], found["fedfomo_problems"]) == (1, 0, 0)
        folder.deliveries.unlink()
        assert _read(port)["fedfomo_problems"] == 1
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _read(port, "/")
    assert "fedfomo_rounds_answered 2" in exposition(site_status.facts(site))


def test_only_this_machine_is_answered(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    with metrics_endpoint(0, lambda: status.facts(folder)) as port, socket.socket() as probe:
        probe.bind(("127.0.0.2", port))  # another address of this machine is free: nothing listens on all of them


def test_a_log_that_is_too_large_begins_anew_under_whoever_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "flower.log"
    with path.open("ab", buffering=0) as log:
        log.write(b"a" * 1000)
        rotate(path, most=1000)
        assert path.stat().st_size == 1000
        log.write(b"b")
        rotate(path, most=1000)
        assert path.stat().st_size == 0
        assert (tmp_path / "flower.log.1").read_bytes() == b"a" * 1000 + b"b"
        log.write(b"c")
    assert path.read_bytes() == b"c"
