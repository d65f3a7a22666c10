"""The files that `deploy init` writes for operations: nginx runs with its recipe, systemd looks over the units."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from federations import SITES, megabytes, same
from fedfomo.deployment.fleet_connection import FleetConnection
from fedfomo.deployment.operations import write_operations
from fedfomo.deployment.provisioning import add_site, provision, remove_site
from fedfomo.deployment.settings import FederationConfig, FederationFolder
from fedfomo.deployment.subprocesses import answers, free_port, wait_until
from fedfomo.runs.config_io import write_toml
from real_server import ThreadedFederation, threaded


def test_the_proxy_knows_the_keys_of_those_who_belong(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds", "turin"], FederationConfig(max_sites=3, address="fed.example.org:8443"))
    keys = folder.operations / "keys.map"
    assert keys.read_text().count(" 1;\n") == 2
    add_site(folder, "lyon")
    assert keys.read_text().count(" 1;\n") == 3
    remove_site(folder, "lyon")
    assert keys.read_text().count(" 1;\n") == 2
    recipe = (folder.operations / "nginx.conf").read_text()
    assert "@" not in recipe
    assert "server_name fed.example.org;" in recipe


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_units_are_such_as_systemd_understands(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds", "turin"], FederationConfig(max_sites=3))
    for unit in folder.operations.glob("*.service"):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False
        )
        told = [line for line in done.stderr.splitlines() if unit.name in line and "not executable" not in line]
        assert told == [], told


@contextmanager
def _nginx(folder: FederationFolder, place: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run nginx with the recipe, as it stands, in a configuration of its own."""
    around = f"""
daemon off; user root; worker_processes 1; pid {place}/pid; error_log {place}/error.log;
events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path {place}/body; proxy_temp_path {place}/proxy;
fastcgi_temp_path {place}/f; uwsgi_temp_path {place}/u; scgi_temp_path {place}/s;
include {folder.operations}/nginx.conf; }}
"""
    place.mkdir()
    (place / "nginx.conf").write_text(around)
    process = subprocess.Popen(["nginx", "-p", str(place), "-c", str(place / "nginx.conf")])
    try:
        assert wait_until(lambda: answers("127.0.0.1", port) or process.poll() is not None, 20)
        assert process.poll() is None, (place / "error.log").read_text()
        yield process
    finally:
        process.terminate()
        process.wait(20)


@pytest.mark.deployment
@pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx here")
def test_sites_reach_the_server_through_nginx_and_nobody_else_does(tmp_path: Path) -> None:
    settings = ("--rounds", "3", "--min-clients", "3", "--max-sites", "3", "--epochs", "1")
    with threaded(tmp_path, *settings) as made:
        port = free_port()
        outside = f"127.0.0.1:{port}"
        made.folder.settings.write_text(write_toml(replace(made.folder.config(), address=outside, listen=made.address)))
        for name in SITES:
            site = made.site(name)
            site.write_card(replace(site.card(), address=outside))
        write_operations(made.folder)
        made.start_server()
        with _nginx(made.folder, tmp_path / "nginx", port):
            made.wait_for(made.folder.process.exists)
            before = megabytes(made.folder, "flower-superlink")
            _attack(made, outside)
            assert megabytes(made.folder, "flower-superlink") < before + 30
            log = (made.folder.server / "flower.log").read_text()
            assert log.count("POST /v1/fleet/push-object") == 1  # the one that brought a public key
            assert "x" * 100 not in log
            made.join(dict.fromkeys(SITES, FleetConnection))
            made.wait()
        assert same(made.models(), made.simulated())


def _attack(made: ThreadedFederation, outside: str) -> None:
    """Do what an outsider without a key can do, and what one with another's public key can."""
    context = ssl.create_default_context(cafile=str(made.folder.server / "ca.crt"))
    key = (made.folder.operations / "keys.map").read_text().split('"')[1]
    with httpx.Client(base_url=f"https://{outside}", verify=context, timeout=60) as stranger:
        for path in ("/v1/control/list-nodes", "/v1/runtime/get-nodes", "/docs", "/"):
            assert stranger.post(path, content=b"").status_code == 404
        for _ in range(6):
            assert _post(stranger, "/v1/fleet/push-object", b"x" * 200_000_000) in (0, 401, 413)
        for _ in range(20):
            assert stranger.get("/v1/fleet/" + "x" * 6000).status_code in (400, 401, 414)
        assert _post(stranger, "/v1/fleet/push-object", b"x" * 9_000_000, {"flwr-public-key": key}) in (0, 413)
        assert _post(stranger, "/v1/fleet/push-messages", b"x" * 300_000, {"flwr-public-key": key}) in (0, 413)
        assert stranger.post("/v1/fleet/push-object", content=b"x", headers={"flwr-public-key": key}).status_code >= 400
        began, statuses = time.monotonic(), set[int]()
        while time.monotonic() - began < 4:
            statuses.add(stranger.get("/v1/fleet/push-object").status_code)
        assert statuses <= {401, 429}


def _post(stranger: httpx.Client, path: str, content: bytes, headers: dict[str, str] | None = None) -> int:
    """Return the status, or 0 where the connection was cut before all was sent."""
    try:
        return stranger.post(path, content=content, headers=headers).status_code
    except httpx.TransportError:
        return 0
