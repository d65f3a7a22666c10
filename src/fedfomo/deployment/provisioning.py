"""From a list of names to everything that a federation needs to trust each other.

One authority signs the server's certificate. Every site gets a key by which the server knows it, and one that models
are encrypted to; the server keeps the public halves. Private keys are readable by their owner alone.
"""

from __future__ import annotations

import ipaddress
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedfomo.deployment.addresses import ALL, host_and_port
from fedfomo.deployment.encryption import MessageCipher, write_key
from fedfomo.deployment.operations import write_keys, write_operations
from fedfomo.deployment.settings import (
    FederationConfig,
    FederationFolder,
    Site,
    SiteFolder,
    SiteIdentity,
)
from fedfomo.errors import require, unknown
from fedfomo.io import PRIVATE, make_folder, write_atomically
from fedfomo.runs.config_io import write_toml

YEARS = 5
TEMPLATES = Path(__file__).parent / "templates"


def provision(
    folder: FederationFolder, names: Sequence[str], config: FederationConfig, model: Path | None = None
) -> None:
    """Make a federation's folder: authority, server, one folder a site, and templates of what is to be written."""
    require(not folder.path.exists(), f"{folder.path} exists: choose another folder, or `fedfomo deploy add-site`")
    require(len(names) > 0, "give at least one site")
    check_names(names)
    require(model is None or model.is_file(), f"there is no file {model}")
    require(
        len(names) <= config.max_sites, f"max_sites is {config.max_sites}, for {len(names)} sites: raise --max-sites"
    )
    from fedfomo.deployment.allowed_methods import make_method  # imports torch, which adding a site need not wait for

    make_method(config.method, config.options)  # refuse before anything is written, or handed out
    make_folder(folder.path.parent)
    # In a folder beside it, with a name that nothing else has: what fails, or is killed, leaves no half federation.
    unfinished = tempfile.mkdtemp(prefix=f"{folder.path.name}.", suffix=".unfinished", dir=folder.path.parent)
    try:
        _fill(FederationFolder(Path(unfinished)), names, config, model or TEMPLATES / "model.py", folder.path)
        Path(unfinished).rename(folder.path)
    except BaseException:
        shutil.rmtree(unfinished)
        raise


def _fill(folder: FederationFolder, names: Sequence[str], config: FederationConfig, model: Path, home: Path) -> None:
    """Write all that a federation's folder holds, for the place where it will be."""
    for private in (folder.authority, folder.server, folder.sites):
        private.mkdir(mode=0o700)
    folder.settings.write_text(write_toml(config))
    shutil.copy(model, folder.model)
    authority_key = ec.generate_private_key(ec.SECP384R1())
    authority = _certificate(["fedfomo authority"], authority_key, None, None)
    write_atomically(folder.authority / "ca.key", _pem(authority_key), mode=PRIVATE)
    certificate = authority.public_bytes(serialization.Encoding.PEM)
    for place in (folder.authority, folder.server):
        (place / "ca.crt").write_bytes(certificate)
    write_server_certificate(folder, authority, authority_key)
    write_key(folder.server / "sealing.key")
    folder.write_registry(secrets.token_hex(16), [])
    for name in names:
        add_site(folder, name)
    write_operations(folder, home)


def write_server_certificate(
    folder: FederationFolder, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey
) -> None:
    """Make the server's key, and a certificate for the addresses that the settings name."""
    key, config = ec.generate_private_key(ec.SECP384R1()), folder.config()
    hosts = [host_and_port(config.address)[0], *({config.listens_on[0]} - ALL.keys())]
    certificate = _certificate(hosts, key, authority, authority_key)
    write_atomically(folder.server / "server.key", _pem(key), mode=PRIVATE)
    write_atomically(folder.server / "server.crt", certificate.public_bytes(serialization.Encoding.PEM))


def add_site(folder: FederationFolder, name: str) -> SiteFolder:
    """Add a site: its keys, its slot, and the folder to hand over."""
    with folder.registry_locked():
        config, sites, identity = folder.config(), folder.registry(), folder.identity()
        _check_name(name, [site.name for site in sites])
        free = sorted(set(range(config.max_sites)) - {site.slot for site in sites})
        more = "make a new one with a larger --max-sites"
        require(bool(free), f"the federation was made for {config.max_sites} sites: {more}")
        place, unfinished = folder.sites / name, folder.sites / f"{name}.unfinished"
        stranger = f"{place} exists, and no site of that name: move the folder away, or choose another name"
        require(not place.exists(), stranger)
        shutil.rmtree(unfinished, ignore_errors=True)  # of an earlier try that was killed
        folder.sites.mkdir(mode=0o700, exist_ok=True)  # whoever has handed all over may have deleted it
        unfinished.mkdir(mode=0o700)
        pem, seal = _equip(folder, name, SiteFolder(unfinished))
        unfinished.rename(place)
        # Drawn, so that the order in which sites joined does not tell who is who.
        folder.write_registry(identity, [*sites, Site(name, secrets.choice(free), pem, seal)])
        write_keys(folder)
    return SiteFolder(place)


def remove_site(folder: FederationFolder, name: str) -> list[Site]:
    """Let a site leave for good, and return those that stay."""
    with folder.registry_locked():
        sites = folder.registry()
        if name not in {site.name for site in sites}:
            raise unknown("site", name, [site.name for site in sites])
        require(any(site.name == name for site in folder.members()), f"site '{name}' has left already")
        folder.write_registry(
            folder.identity(), [replace(site, has_left=True) if site.name == name else site for site in sites]
        )
        write_keys(folder)
        return folder.members()


def _equip(folder: FederationFolder, name: str, place: SiteFolder) -> tuple[str, str]:
    """Fill the folder to hand over, and return the public halves of the site's two keys."""
    shutil.copy(folder.model, place.model)
    shutil.copy(TEMPLATES / "data.py", place.data)
    shutil.copy(TEMPLATES / "privacy.toml", place.privacy_settings)
    shutil.copy(TEMPLATES / "policy.toml", place.policy)
    return write_site_keys(folder, name, place)


def write_site_keys(folder: FederationFolder, name: str, place: SiteFolder) -> tuple[str, str]:
    """Write a site's keys, and what it needs to know of the server; return the public halves of its two keys."""
    config = folder.config()
    key = ec.generate_private_key(ec.SECP384R1())
    encryption = serialization.NoEncryption()
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    write_atomically(place.key, key.private_bytes(*formats, encryption), mode=PRIVATE)
    public = key.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    seal = write_key(place.seal)
    shutil.copy(folder.server / "ca.crt", place.ca)
    server_seal = MessageCipher.read(folder.server / "sealing.key").public_key
    place.write_card(SiteIdentity(name, folder.identity(), config.address, server_seal, config.plaintext))
    return pem, seal


def check_names(names: Sequence[str]) -> None:
    """Refuse names that no site can have, and one that is given twice."""
    for number, name in enumerate(names):
        _check_name(name, names[:number])


def _check_name(name: str, taken: Sequence[str]) -> None:
    require(re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name) is not None, f"site name '{name}': use a-z, 0-9, - and _")
    require(name not in taken, f"site '{name}' exists already")


def _certificate(
    names: Sequence[str],
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    issuer_key: ec.EllipticCurvePrivateKey | None,
) -> x509.Certificate:
    """Sign a certificate: an authority's own, or with an issuer, a server's, for all hosts that are named."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    now = datetime.now(UTC)
    signing_key = issuer_key or key
    signer = x509.SubjectKeyIdentifier.from_public_key(signing_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(signer), critical=False)
        .add_extension(_usage(is_authority=issuer is None), critical=True)
    )
    if issuer is not None:
        hosts = {*names, "localhost", "127.0.0.1", "::1"}  # the server's own processes reach it on this machine
        builder = builder.add_extension(
            x509.SubjectAlternativeName([general_name(host) for host in sorted(hosts)]), critical=False
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signing_key, hashes.SHA384())


def _usage(is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )


def general_name(name: str) -> x509.GeneralName:
    """Return a host as certificates have it: an IP address, or a name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    encoding, layout = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, layout, serialization.NoEncryption())
