"""Addresses, host:port: what is one, its two parts, and how it is spelt."""

from __future__ import annotations

import ipaddress
import re

from fedfomo.errors import require

ALL = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Hosts that stand for all addresses of a machine, with the one by which the machine itself reaches them."""

_LABEL = r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"


def host_and_port(address: str) -> tuple[str, int]:
    """Return the two parts of an address; port 0 if it has none."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port) if re.fullmatch("[0-9]{1,5}", port) else 0


def spell_address(host: str, port: int) -> str:
    """Return the address of a host and a port; IPv6 is written in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_address(name: str, address: str) -> None:
    """Refuse a setting that is no address at which a server can be reached."""
    host, port = host_and_port(address)
    is_whole = bool(host) and 0 < port < 65536 and "/" not in host
    rule = f"{name} must be host:port, such as fed.example.org:8443, without https:// and without a path"
    require(is_whole, f"{rule}, not '{address}'")
    ascii_only = f"{name} must be written in ASCII, as certificates have it"
    require(host.isascii(), f"{ascii_only}, not '{address}'{_hint(host, port)}")
    brackets = f"{name} '{address}': write an IPv6 address in brackets, such as [2001:db8::1]:8443"
    require((":" in host) == address.startswith("["), brackets)
    require(_is_ip(host) or _is_name(host), f"{name} '{address}': '{host}' is no name of a machine, and no IP address")


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach a host."""
    return host in ("127.0.0.1", "localhost", "::1")


def _hint(host: str, port: int) -> str:
    """Say how a name in other letters is written in ASCII, if that can be."""
    try:
        return f": write {spell_address(host.encode('idna').decode(), port)}"
    except UnicodeError:
        return ""


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # the zone of an IPv6 address means something on one machine only


def _is_name(host: str) -> bool:
    return len(host) < 254 and re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", host.lower()) is not None
