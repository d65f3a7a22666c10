"""How encrypted bytes ride in Flower's messages, and how a site shows who it is."""

from __future__ import annotations

import time

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedfomo.deployment.encryption import DecryptionError, MessageCipher, Purpose
from fedfomo.deployment.settings import SiteFolder

CONTENT = "fedfomo.sealed"
NONCE = "fedfomo.nonce"
PROOF = "fedfomo.proof"
SITE = "fedfomo.site"

ONE_PIECE = 4 * 2**20  # bytes
GRACE = 30.0  # seconds for which Flower keeps a message beyond its deadline: what came in time is still to be fetched
CLOCKS = 300.0  # seconds by which two machines' clocks may differ; Flower lets nobody in whose clock is further off


def deadline(message: Message) -> float:
    """Return until when, by this machine's clock, it is worth working on a message.

    What counts is the time since it came here, which one clock tells alone. The server's clock is asked only whether
    the message is much too old, since it may have waited before it was handed over, as in a machine that slept.
    """
    sent, seconds = message.metadata.created_at, message.metadata.ttl - GRACE
    return seconds + min(time.time(), sent + CLOCKS)


def record_of(encrypted: bytes) -> RecordDict:
    """Wrap bytes: a few as a plain value, which Flower moves in one piece, and more as an array, in chunks.

    Every piece is a request of its own, at both ends.
    """
    if len(encrypted) <= ONE_PIECE:
        return RecordDict({CONTENT: ConfigRecord({CONTENT: encrypted})})
    array = Array("uint8", (len(encrypted),), CONTENT, encrypted)
    return RecordDict({CONTENT: ArrayRecord({CONTENT: array})})  # pyright: ignore[reportArgumentType]


def content_of(record: RecordDict) -> bytes:
    """Unwrap bytes."""
    value = record.config_records.get(CONTENT, {}).get(CONTENT)
    if isinstance(value, bytes):
        return value
    arrays = record.array_records.get(CONTENT, {})
    if CONTENT not in arrays or not isinstance(arrays[CONTENT].data, bytes):
        raise DecryptionError("nothing encrypted is in it")
    return arrays[CONTENT].data


def introduction(site: SiteFolder, message: Message) -> Message:
    """Answer the question which site this is, with a proof."""
    card = site.card()
    nonce = message.content.config_records[NONCE][NONCE]
    if not isinstance(nonce, bytes):
        raise DecryptionError("the question brings no nonce")
    proof = MessageCipher.read(site.seal).encrypt(card.server_seal, nonce, Purpose.INTRODUCTION)
    return Message(RecordDict({PROOF: ConfigRecord({SITE: card.name, PROOF: proof})}), reply_to=message)
