"""Small files that claim, or unpack to, more than memory should ever hold."""

from __future__ import annotations

import gzip
import io
import json
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from loaders import LOADERS, REFUSALS, Read
from mutations import forget_peak, peak_megabytes, resident_megabytes

ZEROS = bytes(10_000_000)
TRUSTING = "a reader that trusts"


def _safetensors(header: bytes, body: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + body


def _many(count: int, offset: Callable[[int], tuple[int, int]]) -> bytes:
    entries = {f"t{n}": {"dtype": "F32", "shape": [1], "data_offsets": offset(n)} for n in range(count)}
    return _safetensors(json.dumps(entries).encode(), bytes(4 * count))


def _huge_npy(shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)


def _zipped(member: bytes, repeat: int = 1) -> bytes:
    opened = io.BytesIO()
    with zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("x_train", "y_train", "x_test", "y_test", "inputs", "labels", "fingerprint", "accuracy"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                for _ in range(repeat if name in ("x_train", "inputs") else 1):
                    entry.write(member)
    return opened.getvalue()


def _zeros_npz() -> bytes:
    """Return an archive of a whole array of 300 MB of zeros."""
    size = 30 * len(ZEROS)
    header = (
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size // 1000}, 10, 100), }}".encode().ljust(117) + b"\n"
    )
    opened = io.BytesIO()
    with zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                entry.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
                for _ in range(30 if name == "x_train" else 0):
                    entry.write(ZEROS)
    return opened.getvalue()


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(ZEROS)) + chunk(b"IEND", b"")


def _envelope(header: bytes, tensors: bytes, length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(4, "little") + header + tensors


def odd_tensors() -> Iterator[tuple[str, bytes]]:
    """Yield tensors that the format allows and torch does not know, or cannot count."""
    for name, kind, shape, body in (
        ("numbers of 4 bits", "F4", [8], b"1234"),
        ("numbers of 6 bits", "F6_E2M3", [4], b"123"),
        ("exponents alone", "F8_E8M0", [4], b"1234"),
        ("a dimension of 2^63", "F32", [0, 2**63], b""),
        ("2^124 times nothing", "F32", [0, 2**62, 2**62], b""),
    ):
        header = json.dumps({"upload/model": {"dtype": kind, "shape": shape, "data_offsets": [0, len(body)]}}).encode()
        yield name, _safetensors(header + b" " * (-len(header) % 8), body)


def bombs() -> Iterator[tuple[str, str, bytes]]:
    """Yield a name, the loader that meets it, and the bytes."""
    deep = b"[" * 1_000_000
    table = b'{"a":' * 100_000
    many, same = _many(100_000, lambda n: (4 * n, 4 * n + 4)), _many(100_000, lambda n: (0, 4))
    models = {f"upload/models.{n}": {"dtype": "F32", "shape": [0], "data_offsets": (0, 0)} for n in range(100_000)}
    numbered = _safetensors(json.dumps(models).encode())
    claims = json.dumps({"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    for loader in ("safetensors", "tensor file", "site's safetensors", "embedder's checkpoint"):
        yield "a header of 9 exabytes", loader, _safetensors(b"{}", length=2**63 - 1)
        yield "a header of 90 megabytes", loader, _safetensors(b" " * 90_000_000)
        yield "a tensor of 4 terabytes", loader, _safetensors(claims)
        yield "100,000 tensors", loader, many
        yield "100,000 tensors in one place", loader, same
        yield "a million brackets for a header", loader, _safetensors(deep)
    for loader in ("envelope", "site's memory"):
        yield "a header of 4 gigabytes", loader, _envelope(b"{}", b"", 2**32 - 1)
        yield "a million brackets", loader, _envelope(deep, b"")
        yield "100,000 tensors", loader, _envelope(b"{}", many)
        yield "100,000 models of length 0", loader, _envelope(b"{}", numbered)
        yield "a tensor of 4 terabytes", loader, _envelope(b"{}", _safetensors(claims))
        yield from ((name, loader, _envelope(b"{}", odd)) for name, odd in odd_tensors())
    zeros = _zeros_npz()
    for loader in ("npz", "site's npz", "groups"):
        yield "an array of 3.6 TiB", loader, _zipped(_huge_npy("(500000000000,)"))
        yield (
            "an array of 10^30 numbers",
            loader,
            _zipped(_huge_npy("(10**15, 10**15)".replace("10**15", "1" + "0" * 15))),
        )
        yield "an array of minus one", loader, _zipped(_huge_npy("(-1,)"))
        yield "300 MB of zeros", loader, zeros
    yield "an array of 3.6 TiB", "cached array", _huge_npy("(500000000000,)")
    idx = bytes((0, 0, 8, 3)) + struct.pack(">III", 1_000_000, 32, 32)
    yield "a gigabyte of zeros", "idx.gz", gzip.compress(idx) + gzip.compress(ZEROS) * 103
    yield "2^96 pixels", "idx", bytes((0, 0, 8, 3)) + b"\xff" * 12
    yield "2^64 pixels, which is 0", "idx", bytes((0, 0, 8, 3)) + struct.pack(">III", 2**31, 2**31, 4)
    yield "2.5 billion pixels", "png", _png(50_000, 50_000)
    yield "a hundred million pixels", "png", _png(10_000, 10_000)
    for loader in ("result", "registry", "site's card", "examination", "manifest", "delivery log", "log", "cell"):
        yield "a million brackets", loader, deep + b"\n"
        yield "100,000 tables", loader, table + b"\n"
    yield "a million brackets", "manifest with its checksum", deep
    for loader in ("run's settings", "federation's settings"):
        yield "10,000 brackets", loader, b"rounds = " + b"[" * 10_000
        yield "10,000 tables", loader, b"rounds = " + b"{a=" * 10_000
        yield "a key of 2,000 parts", loader, b".".join([b"a"] * 2_000) + b" = 1"
        yield "a number of a million digits", loader, b"rounds = " + b"9" * 1_000_000
    yield "a line of 50 MB", "site's table", b"a,label\n" + b"1" * 50_000_000


def _trusting(folder: Path, content: bytes) -> None:
    packed = content if content[:2] == b"PK" else None
    if packed:
        with np.load(io.BytesIO(packed), allow_pickle=False) as archive:
            archive["x_train"].sum()


def explode_all(place: Path, is_full: bool) -> list[dict[str, Any]]:
    """Let bombs, all or some, meet their loaders; say what came of each, in how long, and how much memory it took."""
    for name, loader in LOADERS.items():  # whatever is imported on demand is imported now
        (place / name).mkdir()
        with suppress(*REFUSALS):
            loader.read(place / name, loader.whole)
    told: list[dict[str, Any]] = []
    for number, (name, target, content) in enumerate(bombs()):
        is_twin = (target, name) == ("npz", "300 MB of zeros")
        if is_full or is_twin or number % 7 == 0:
            told.append(_exploded(f"{name}, {target}", LOADERS[target].read, place / str(number), content))
        if is_twin:
            told.append(_exploded(TRUSTING, _trusting, place / f"{number}-twin", content))
    return told


def _exploded(name: str, read: Read, folder: Path, content: bytes) -> dict[str, Any]:
    folder.mkdir()
    forget_peak()
    before, began = resident_megabytes(), time.process_time()
    try:
        read(folder, content)
        outcome = "read"
    except REFUSALS:
        outcome = "refused"
    except Exception as error:  # told by its kind
        outcome = f"{type(error).__name__}: {str(error)[:200]}"
    seconds, megabytes = time.process_time() - began, peak_megabytes() - before
    return {"name": name, "outcome": outcome, "seconds": seconds, "megabytes": megabytes}
