"""What keeps a site out, or ends its work, is told to it in words, by a real SuperLink."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedfomo.deployment.fleet_connection import FleetConnection
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.settings import FederationConfig, FederationFolder, SiteFolder
from fedfomo.deployment.site_client import Worker
from fedfomo.deployment.subprocesses import wait_until
from fedfomo.deployment.superlink_control import SuperLinkControl
from in_memory_transport import Loopback, make_federation, serve
from real_server import NodeOf, ThreadedFederation, threaded

deployment = pytest.mark.deployment


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedFederation]:
    """Start a server that waits for a third site, which never comes, and two sites."""
    settings = ("--rounds", "2", "--min-clients", "3", "--max-sites", "3", "--startup-timeout", "1000")
    with threaded(tmp_path_factory.mktemp("server"), *settings) as made:
        made.start_server()
        made.join({"leeds": FleetConnection, "turin": FleetConnection})
        made.wait_for(lambda: all(_is_in(node) for node in made.nodes.values()))
        yield made


def _is_in(node: NodeOf) -> bool:
    return "on line: waiting for the server's requests" in node.said


def _told(site: SiteFolder, what: str) -> str:
    """Start a node until it says something, and return what it has said."""
    stop = threading.Event()
    node = NodeOf(site, FleetConnection, stop)
    thread = threading.Thread(target=node.run, daemon=True)
    thread.start()
    wait_until(lambda: any(what in words for words in node.said), 30)
    stop.set()
    thread.join(20)
    return "\n".join(node.said)


@deployment
def test_a_copied_folder_is_told_that_its_keys_are_in_use(server: ThreadedFederation, tmp_path: Path) -> None:
    copy = shutil.copytree(server.site("leeds").path, tmp_path / "copy")
    assert "a copy of this folder runs elsewhere" in _told(SiteFolder(copy), "keys are in use")


@deployment
def test_another_authority_is_named(server: ThreadedFederation, tmp_path: Path) -> None:
    other = FederationFolder(tmp_path / "other")
    provision(other, ["leeds", "turin"], FederationConfig(max_sites=2))
    copy = SiteFolder(shutil.copytree(server.site("lyon").path, tmp_path / "copy"))
    shutil.copy(other.server / "ca.crt", copy.ca)
    assert "shows no certificate that ca.crt vouches for" in _told(copy, "vouches for")


@deployment
@pytest.mark.parametrize(("seconds", "is_in"), [(60, False), (-400, False), (2, True), (-200, True)])
def test_a_clock_that_is_off_is_named_and_others_are_let_in(
    server: ThreadedFederation, monkeypatch: pytest.MonkeyPatch, seconds: int, is_in: bool
) -> None:
    from flwr.supernode import node_auth_http_interceptor

    from fedfomo.deployment import fleet_connection

    really, clock = node_auth_http_interceptor.now, fleet_connection.time.time

    def now() -> datetime:
        return really() + timedelta(seconds=seconds)

    monkeypatch.setattr(node_auth_http_interceptor, "now", now)
    monkeypatch.setattr(fleet_connection, "time", type("Clock", (), {"time": lambda: clock() + seconds}))
    told = _told(server.site("lyon"), "on line" if is_in else "clock")
    assert ("on line" in told) == is_in, told
    if not is_in:
        assert "this machine's clock is" in told
        assert "5 s ahead, or 305 s behind; set the clock" in told


@deployment
def test_no_server_is_named(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds", "turin"], FederationConfig(max_sites=2, address="127.0.0.1:9"))
    assert "no server answers at 127.0.0.1:9" in _told(SiteFolder(folder.sites / "leeds"), "no server")


@deployment
def test_a_site_that_was_removed_is_told_so(server: ThreadedFederation) -> None:
    node = int(server.site("turin").node.read_text())
    with closing(SuperLinkControl(server.address, (server.folder.server / "ca.crt").read_bytes())) as control:
        control.unregister(node)
    said = server.nodes["turin"].said
    assert wait_until(lambda: "this site was removed from the federation" in said[-1], 60), said


def test_what_is_no_server_of_a_federation_is_named(tmp_path: Path) -> None:
    site = SiteFolder(make_federation(tmp_path).sites / "leeds")
    request = httpx.Request("POST", "https://fed.example.org")
    error = httpx.HTTPStatusError("", request=request, response=httpx.Response(502, request=request))
    words = FleetConnection(site)._words(error)
    assert words.endswith("answers with 502: this is not a fedfomo server, or a proxy whose server is down")


def test_a_site_says_how_far_it_is_and_when_all_is_done(tmp_path: Path) -> None:
    folder, told = make_federation(tmp_path), list[str]()

    class Talking(Loopback):
        def worker(self, site: str) -> Any:
            if site == "leeds" and site not in self._workers:
                self._workers[site] = Worker(SiteFolder(folder.sites / site), None, told.append)
            return super().worker(site)

    serve(Talking(folder), folder)
    assert [words.partition(";")[0] for words in told] == [
        "round 1 of 2 is done",
        "round 2 of 2 is done",
        "all 2 rounds are complete",
    ]
    assert "test records; it is in models/personalised.safetensors" in told[-1]
