"""What Prometheus reads, and logs that do not grow for ever."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cli_calls import refused
from fedfomo.cli import deploy
from fedfomo.deployment import site_status, status, subprocesses
from fedfomo.deployment.metrics import exposition, metrics_endpoint
from fedfomo.deployment.settings import SiteFolder
from fedfomo.deployment.site_process import SiteProcess
from fedfomo.deployment.subprocesses import free_port, rotate
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


SECOND = """
from pathlib import Path
from fedfomo.deployment.subprocesses import exclusive_supervisor

with exclusive_supervisor(Path("{}"), "X"):
    pass
"""


def test_a_site_that_is_watched_keeps_others_out_and_is_known_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, port = SiteFolder(make_federation(tmp_path).sites / "leeds"), free_port()
    site.memory.mkdir()
    site.words.write_text(json.dumps({"words": "on line", "is_fault": False, "time": time.time()}))
    seen: list[Any] = []

    def look(*_: object) -> None:
        found = _read(port)
        seen.append((found["fedfomo_is_running"], found["fedfomo_problems"]))
        second = [sys.executable, "-c", SECOND.format(site.path)]
        seen.append(subprocess.run(second, capture_output=True, text=True, check=False).stderr)

    monkeypatch.setattr(SiteProcess, "_keep", look)
    monkeypatch.setattr(subprocesses, "end_on_termination", lambda: None)
    deploy.site([str(site.path), "--metrics", str(port)])
    assert seen[0] == (1, 0)
    assert "is running already: stop that first" in seen[1]


def test_seconds_since_1970_are_told_to_the_second() -> None:
    (line,) = [line for line in exposition({"since": 1795134444.75}).splitlines() if not line.startswith("#")]
    assert float(line.split()[1]) == 1795134444.75


def test_a_port_that_cannot_be_listened_on_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(make_federation(tmp_path).sites / "leeds")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        told = refused(capsys, "deploy", "site", place, "--metrics", port)
    assert f"port {port} of 127.0.0.1 cannot be used (Address already in use)" in told
    for port in ("99999", "-1"):
        assert f"--metrics must be a port, 1 to 65535, or 0 for none, not {port}" in refused(
            capsys, "deploy", "site", place, "--metrics", port
        )


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
