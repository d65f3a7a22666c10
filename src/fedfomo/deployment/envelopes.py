"""Parcels: a header of plain values and the tensors that it speaks of, as one string of bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from fedfomo.core.archives import MOST_HEADER, header_length
from fedfomo.core.messages import Flat, MessageError
from fedfomo.deployment.quantisation import quantise, restore

Header = dict[str, Any]


@dataclass(frozen=True)
class Envelope:
    """What one side tells the other."""

    header: Header
    tensors: Flat

    def to_bytes(self, bits: int = 32) -> bytes:
        """Spell the parcel out, with models of so many bits a coordinate."""
        header = json.dumps(self.header).encode()
        return len(header).to_bytes(4, "little") + header + save(_apart(quantise(self.tensors, bits)))

    @classmethod
    def read(cls, content: bytes, most: int | None = None) -> Envelope:
        """Read a parcel; refuse what is none, and one that holds more numbers than it may."""
        end = 4 + int.from_bytes(content[:4], "little")
        if max(end, header_length(content[end : end + 8])) > MOST_HEADER:
            raise MessageError("it is no parcel (its header is too long)")
        try:
            header = json.loads(content[4:end])
            tensors = load(content[end:])
        except Exception as error:  # whatever forged bytes make their reader raise
            raise MessageError(f"it is no parcel ({type(error).__name__}: {error})") from None
        count = sum(tensor.numel() for tensor in tensors.values())
        if most is not None and count > most:
            raise MessageError(f"it holds {count:,} numbers, more than {most:,}")
        if not isinstance(header, dict):
            raise MessageError("its header is no table")
        return cls(header, restore(tensors))


def most_bytes(most: int) -> int:
    """Return how long a parcel may be that holds at most so many numbers; none is longer than 8 bytes."""
    return 8 * most + 2 * MOST_HEADER


def digest_of(tensor: Tensor) -> str:
    """Hash a tensor's values."""
    return hashlib.sha256(tensor.contiguous().view(-1).numpy().data).hexdigest()


def _apart(flat: Mapping[str, Tensor]) -> Flat:
    """Give every tensor memory of its own, as the format demands; one model may be sent under two names."""
    seen: set[int] = set()
    apart: Flat = {}
    for name, tensor in flat.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor.contiguous()
        seen.add(place)
    return apart
