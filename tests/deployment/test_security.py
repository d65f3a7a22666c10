"""Strangers stay out, and what passes on the wire tells nothing."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from federations import SITES, Federation, Tap, federation, same
from fedfomo.deployment.protocol import Envelope
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.settings import FederationConfig, FederationFolder, SiteFolder
from fedfomo.deployment.subprocesses import ProcessGroup, environment, free_port, wait_until
from fedfomo.deployment.user_model import load_model

pytestmark = pytest.mark.deployment

LET_IN = "SuperNode ID"  # what a SuperNode says once the server has let it in
SHORT = ("--rounds", "2", "--min-clients", "3", "--max-sites", "3", "--epochs", "1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Start a server that waits for sites."""
    with federation(tmp_path_factory.mktemp("server"), *SHORT) as made:
        made.start_server()
        log = made.folder.server / "flower.log"
        made.wait_for(lambda: log.exists() and made.folder.process.exists())
        yield made


def _other(place: Path) -> SiteFolder:
    """Make another federation, whose keys and authority are unknown here, and return one of its sites."""
    folder = FederationFolder(place / "other")
    provision(folder, ["leeds"], FederationConfig(max_sites=2))
    return SiteFolder(folder.sites / "leeds")


def _knock(made: Federation, place: Path, *flags: str) -> tuple[str, bool]:
    """Start a SuperNode for some seconds; return what it says, and whether the server let it in."""
    name = Path(sys.executable).parent / "flower-supernode"
    command = [str(name), "--superlink", made.address, "--host", "127.0.0.1", "--port", str(free_port()), *flags]
    said = place / "said"
    with said.open("wb") as output:
        node = ProcessGroup([*command, "--max-wait-time", "5"], environment(place / "flower", {}), output)
    wait_until(lambda: node.exit_code is not None or LET_IN in said.read_text(errors="replace"), 30)
    node.end()
    told = said.read_text(errors="replace")
    return told, LET_IN in told


def test_those_who_do_not_belong_are_refused(server: Federation, tmp_path: Path) -> None:
    other, mine = _other(tmp_path), server.site("leeds")
    ca, key = "--root-certificates", "--auth-supernode-private-key"
    strangers = {
        "an unregistered key": (ca, str(mine.ca), key, str(other.key)),
        "no key": (ca, str(mine.ca)),
        "another authority": (ca, str(other.ca), key, str(mine.key)),
        "in plain text": ("--insecure",),
    }
    for who, flags in strangers.items():
        told, is_in = _knock(server, tmp_path, *flags)
        assert not is_in, (who, told)
    assert "Activated node_id" not in server.told()
    told, is_in = _knock(server, tmp_path, ca, str(mine.ca), key, str(mine.key))
    assert is_in, told  # or the refusals above would say nothing
    assert "Activated node_id" in server.told()


def test_old_versions_of_tls_are_refused(server: Federation) -> None:
    host, _, port = server.address.rpartition(":")
    context = ssl.create_default_context(cafile=str(server.folder.server / "ca.crt"))
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host) as safe:
        assert safe.version() in ("TLSv1.2", "TLSv1.3")
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    with socket.create_connection((host, int(port))) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain, server_hostname=host)


@pytest.mark.parametrize("security", ["tls", "plaintext"])
def test_no_tensor_is_heard_on_the_wire(tmp_path: Path, security: str) -> None:
    """Without TLS there is still the seal; the words of the protocol show that the listener hears."""
    flags = ("--plaintext",) if security == "plaintext" else ()
    with federation(tmp_path, *SHORT, *flags) as made:
        tap = Tap(made.address)
        for name in SITES:
            site = made.site(name)
            site.write_card(replace(site.card(), address=tap.address))
        made.start_server()
        made.start_sites(*SITES)
        made.wait()
        tap.close()
        assert same(made.models(), made.simulated())
        initial = load_model(made.folder.model, 3).initial
        canaries = [initial.numpy().tobytes()[start : start + 16] for start in range(0, 4000, 400)]
        for site in SITES:
            for tensor in load_file(made.site(site).models / "personalised.safetensors").values():
                content = tensor.contiguous().numpy().tobytes()
                canaries += [content[start : start + 16] for start in range(0, len(content) - 16, 4096)]
    assert len(canaries) > 30
    plain = Envelope({}, {"initial": initial}).to_bytes()
    assert all(canary in plain for canary in canaries[:10])
    assert len(tap.heard) > 3 * 4 * len(initial)
    assert not any(canary in tap.heard for canary in canaries)
    assert (b"/v1/fleet/" in tap.heard) == (security == "plaintext")


def test_plain_text_stays_on_this_machine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedfomo", "deploy", "init", "--sites", "a", "--plaintext"]
    flags = ["--folder", str(tmp_path / "f"), "--address", "10.0.0.1:8443"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "plaintext is for this machine alone" in done.stderr
