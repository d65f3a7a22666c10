"""Where a server is reached: addresses that cannot work are refused, those that can are used as they are."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from cli_calls import call, refused
from fedfomo.deployment.addresses import host_and_port, spell_address
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.renewal import renew_server
from fedfomo.deployment.server_process import ServerProcess
from fedfomo.deployment.settings import FederationConfig, FederationFolder
from fedfomo.errors import InputError
from fedfomo.runs.config_io import write_toml


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("https://fed.example.org:8443", "address must be host:port, such as fed.example.org:8443, without https://"),
        ("https://fed.example.org", "without https://"),
        ("fed.example.org:8443/federation", "without a path"),
        ("fed.example.org", "address must be host:port"),
        ("fed.example.org:0", "address must be host:port"),
        ("fed.example.org:65536", "address must be host:port"),
        ("fed.example.org:²", "address must be host:port"),
        ("fed.example.org:" + "9" * 5000, "address must be host:port"),
        ("", "address must be host:port"),
        ("fédération.org:8443", r"must be written in ASCII.*: write xn--fdration-b1ab.org:8443"),
        ("é..org:8443", "must be written in ASCII"),
        ("::1:8443", r"write an IPv6 address in brackets, such as \[2001:db8::1\]:8443"),
        ("[fed.example.org]:8443", "write an IPv6 address in brackets"),
        ("[fe80::1%eth0]:8443", "is no name of a machine, and no IP address"),
        ("fed example.org:8443", "'fed example.org' is no name of a machine, and no IP address"),
        ("-fed.example.org:8443", "is no name of a machine"),
    ],
)
def test_an_address_that_cannot_work_is_refused(address: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        FederationConfig(address=address)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("fed.example.org:8443", "fed.example.org", 8443),
        ("xn--fdration-b1ab.org:443", "xn--fdration-b1ab.org", 443),
        ("fed_server:8443", "fed_server", 8443),
        ("10.0.0.5:1", "10.0.0.5", 1),
        ("[2001:db8::1]:65535", "2001:db8::1", 65535),
    ],
)
def test_an_address_has_two_parts_and_one_spelling(address: str, host: str, port: int) -> None:
    assert host_and_port(FederationConfig(address=address).address) == (host, port)
    assert spell_address(host, port) == address


def _names(folder: FederationFolder) -> set[str]:
    certificate = x509.load_pem_x509_certificate((folder.server / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}


@pytest.mark.parametrize(
    ("listen", "added", "near"),
    [
        ("10.0.0.5:9443", {"10.0.0.5"}, "10.0.0.5:9443"),
        ("inner.example.org:9443", {"inner.example.org"}, "inner.example.org:9443"),
        ("[2001:db8::1]:9443", {"2001:db8::1"}, "[2001:db8::1]:9443"),
        ("[::1]:9443", set(), "[::1]:9443"),
        ("0.0.0.0:9443", set(), "127.0.0.1:9443"),
        ("[::]:9443", set(), "[::1]:9443"),
    ],
)
def test_the_certificate_is_for_the_address_that_is_listened_on(
    tmp_path: Path, listen: str, added: set[str], near: str
) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds"], FederationConfig(max_sites=2, address="fed.example.org:8443", listen=listen))
    assert _names(folder) == {"fed.example.org", "localhost", "127.0.0.1", "::1"} | added
    assert spell_address(*folder.config().reached_on) == near
    assert f"upstream fedfomo {{ server {near};" in (folder.operations / "nginx.conf").read_text()


def test_a_server_on_ipv6_alone_is_listened_for_there(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds"], FederationConfig(max_sites=2, address="[2001:db8::1]:8443"))
    recipe = (folder.operations / "nginx.conf").read_text()
    assert "listen [::]:8443 ssl;" in recipe
    assert "server_name [2001:db8::1];" in recipe
    assert FederationConfig(address="[::1]:8443").listens_on == ("::1", 8443)


def test_a_server_that_was_moved_asks_for_its_certificate_before_it_starts(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds"], FederationConfig(max_sites=2))
    folder.settings.write_text(write_toml(replace(folder.config(), listen="127.0.0.2:9443")))
    with pytest.raises(InputError, match=r"server.crt is not for 127.0.0.2: `fedfomo deploy renew` makes one"):
        ServerProcess(folder, print).run()
    renew_server(folder)
    assert str(ipaddress.ip_address("127.0.0.2")) in _names(folder)


def test_a_long_name_has_a_certificate(tmp_path: Path) -> None:
    folder, host = FederationFolder(tmp_path / "federation"), f"{'a' * 60}.example.org"
    provision(folder, ["leeds"], FederationConfig(max_sites=2, address=f"{host}:8443"))
    assert host in _names(folder)


def test_an_address_is_checked_before_anything_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--sites", "leeds,turin", "--folder", str(tmp_path / "federation"))
    assert "must be written in ASCII" in refused(capsys, "deploy", "init", *place, "--address", "fédération.org:8443")
    assert list(tmp_path.iterdir()) == []
    call("deploy", "init", *place, "--address", "[2001:db8::1]:8443")
    assert FederationFolder(tmp_path / "federation").config().listens_on == ("127.0.0.1", 9443)
