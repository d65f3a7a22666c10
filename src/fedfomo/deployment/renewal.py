"""New keys and certificates in place of old ones, and how long those that are there will do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedfomo.deployment.encryption import require_private
from fedfomo.deployment.operations import write_keys, write_operations
from fedfomo.deployment.provisioning import general_name, write_server_certificate, write_site_keys
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.errors import reading, require, unknown

WARNED = 60  # days before a certificate ends


def renew_server(folder: FederationFolder) -> None:
    """Make the server's key and certificate anew, for the address that the settings name now."""
    key = folder.authority / "ca.key"
    require(key.exists(), f"{key} is not there: put it back for as long as this takes, for it signs certificates")
    require_private(key)
    authority_key = serialization.load_pem_private_key(key.read_bytes(), None)
    require(isinstance(authority_key, ec.EllipticCurvePrivateKey), f"{key} holds no key of the right kind")
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)  # noqa: S101 - narrows the type
    authority = x509.load_pem_x509_certificate((folder.server / "ca.crt").read_bytes())
    write_server_certificate(folder, authority, authority_key)
    write_operations(folder)


def renew_site(folder: FederationFolder, name: str) -> Path:
    """Give a site new keys, from now on the only ones that count, and return the folder to hand over."""
    with folder.registry_locked():
        sites = folder.registry()
        if name not in {site.name for site in folder.members()}:
            raise unknown("site", name, [site.name for site in folder.members()])
        place = SiteFolder(folder.sites / f"{name}.renewed")  # no site's own: names have no dot
        if place.path.exists():
            shutil.rmtree(place.path)
        place.path.mkdir(mode=0o700, parents=True)
        key, seal = write_site_keys(folder, name, place)
        folder.write_registry(
            folder.identity(), [replace(site, key=key, seal=seal) if site.name == name else site for site in sites]
        )
        write_keys(folder)
    return place.path


def require_names(certificate: Path, host: str) -> None:
    """Refuse a server's certificate that was made for other hosts than the one it is to be reached by."""
    with reading(certificate, "make another by `fedfomo deploy renew`"):
        known = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = known.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    remedy = "`fedfomo deploy renew` makes one for the address and listen of federation.toml"
    require(general_name(host) in names, f"{certificate} is not for {host}: {remedy}")


def expiring(*certificates: Path) -> Iterator[str]:
    """Say which certificates end soon, or have ended."""
    for path in certificates:
        if path.exists():
            with reading(path, "restore it from a copy"):
                ends = x509.load_pem_x509_certificate(path.read_bytes()).not_valid_after_utc
            days = (ends - datetime.now(UTC)).days
            if days < WARNED:
                yield f"{path.name} {'ends' if days >= 0 else 'has ended'} on {ends:%Y-%m-%d}: `fedfomo deploy renew`"
