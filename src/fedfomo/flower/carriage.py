"""How sealed bytes ride in Flower's messages."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, RecordDict

from fedfomo.flower.sealing import SealError

SEALED = "fedfomo.sealed"
NONCE = "fedfomo.nonce"
PROOF = "fedfomo.proof"
SITE = "fedfomo.site"


def record_of(sealed: bytes) -> RecordDict:
    """Wrap bytes as an array, which Flower moves in chunks; a plain value it would move in one piece."""
    array = Array("uint8", (len(sealed),), SEALED, sealed)
    return RecordDict({SEALED: ArrayRecord({SEALED: array})})  # pyright: ignore[reportArgumentType]


def content_of(record: RecordDict) -> bytes:
    """Unwrap bytes."""
    try:
        return record.array_records[SEALED][SEALED].data
    except KeyError:
        raise SealError("nothing sealed is in it") from None
