"""Encryption: what is sent to a site can be opened there and nowhere else, and shows who sent it.

Flower lets every authenticated node fetch any object whose hash it knows. A box of libsodium (X25519, XSalsa20,
Poly1305) is made with the sender's private and the receiver's public key, so a stranger can neither read nor forge it.
Both ends of a box have the same key: that a request is no answer, nor an introduction either, is said by the beginning
of the box's nonce, which cannot be changed without breaking it.
"""

from __future__ import annotations

import secrets
from enum import Enum
from pathlib import Path

from nacl.exceptions import CryptoError
from nacl.public import Box, PrivateKey, PublicKey

from fedfomo.errors import reading, require
from fedfomo.io import PRIVATE, write_atomically


class DecryptionError(ValueError):
    """What arrived was not encrypted by the one it is said to come from, or not for this receiver."""


class Purpose(Enum):
    """What an encrypted message is: the first 8 bytes of its nonce; the other 16 are random and never repeat."""

    REQUEST = b"order   "
    ANSWER = b"answer  "
    INTRODUCTION = b"introduc"


class MessageCipher:
    """One end of all encrypted correspondence: the server, or a site."""

    def __init__(self, private_key: bytes) -> None:
        self._private = PrivateKey(private_key)

    @classmethod
    def read(cls, path: Path) -> MessageCipher:
        """Read a private key; refuse one that others can read, and what is no key."""
        require_private(path)
        with reading(path, "restore it from a copy"):
            return cls(bytes.fromhex(path.read_text()))

    @property
    def public_key(self) -> str:
        """The key that others seal to."""
        return bytes(self._private.public_key).hex()

    def encrypt(self, to: str, content: bytes, purpose: Purpose) -> bytes:
        """Encrypt bytes to the owner of a public key."""
        nonce = purpose.value + secrets.token_bytes(Box.NONCE_SIZE - len(purpose.value))
        return bytes(Box(self._private, PublicKey(bytes.fromhex(to))).encrypt(content, nonce))

    def decrypt(self, sender: str, encrypted: bytes, purpose: Purpose) -> bytes:
        """Open what the owner of a public key encrypted to this end, for that purpose; refuse anything else."""
        try:
            content = Box(self._private, PublicKey(bytes.fromhex(sender))).decrypt(encrypted)
        except (CryptoError, ValueError) as error:
            raise DecryptionError("it was not encrypted by its sender for this receiver") from error
        if not encrypted.startswith(purpose.value):
            raise DecryptionError(f"it was not encrypted for the purpose '{purpose.name.lower()}'")
        return content


def require_private(*paths: Path) -> None:
    """Refuse to use private keys that are missing, or that other accounts of this machine can read, or write."""
    for path in paths:
        require(path.is_file(), f"{path}, a private key, is missing: restore it from a copy")
        is_open = path.stat().st_mode & 0o077
        remedy = f"chmod 600 {path}; if others may have read it, have it replaced (`fedfomo deploy renew`)"
        require(not is_open, f"{path} is a private key, and other accounts can read or change it: {remedy}")


def write_key(path: Path) -> str:
    """Write a new private key that only its owner may read, and return its public key."""
    private = PrivateKey.generate()
    write_atomically(path, bytes(private).hex().encode(), mode=PRIVATE)
    return bytes(private.public_key).hex()
