"""Files of arrays from untrusted sources, read without pickle and within limits of size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Any, Literal, cast
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedfomo.errors import InputError

MOST_TIMES = 100
"""Largest ratio of unpacked to packed size; a zip bomb of zeros has a thousand."""
ALWAYS_ALLOWED = 50_000_000  # bytes, whatever they were packed into
MOST_HEADER = 2_000_000  # bytes of a safetensors header: some 25,000 tensors, which take half a second to read


class ArchiveError(ValueError):
    """A file is not what its name says, or would fill the memory."""


def most_unpacked(packed: int) -> int:
    """Return to how many bytes a file of so many may unpack."""
    return max(ALWAYS_ALLOWED, MOST_TIMES * packed)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read every array of a NumPy archive; refuse objects, and arrays that are not as long as they say."""
    try:
        with ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            unpacked, most = sum(info.file_size for info in members), most_unpacked(path.stat().st_size)
            _demand(unpacked <= most, f"it unpacks to {unpacked:,} bytes, more than {most:,}: store it uncompressed")
            arrays: dict[str, NDArray[Any]] = {}
            for info in members:
                content = bytearray(info.file_size)
                with archive.open(info) as member:
                    is_whole = cast(Any, member).readinto(content) == len(content) and not member.read(1)
                _demand(is_whole, f"{info.filename} is not as long as it says")
                found = _header(BytesIO(content), len(content))
                array = np.ndarray(found.shape, found.dtype, content, found.begin, order=found.order)
                arrays[info.filename.removesuffix(".npy")] = array
            return arrays
    except ArchiveError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader raise
        raise ArchiveError(f"{type(error).__name__}: {error}") from error


def decode_npy(content: bytes) -> NDArray[Any]:
    """Return the array in the bytes of a .npy file, which it shares; refuse the same."""
    try:
        found = _header(BytesIO(content), len(content))
        return np.ndarray(found.shape, found.dtype, content, found.begin, order=found.order)
    except Exception as error:  # whatever damaged bytes make their reader raise
        raise ArchiveError(f"{type(error).__name__}: {error}") from error


def map_npy(path: Path, mode: Literal["r", "c"]) -> NDArray[Any]:
    """Map a .npy file into memory, to read or to write to a copy; refuse the same."""
    try:
        with path.open("rb") as opened:
            found = _header(opened, path.stat().st_size)
        return np.memmap(path, found.dtype, mode, found.begin, found.shape, found.order)
    except OSError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader raise
        raise ArchiveError(f"{type(error).__name__}: {error}") from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a safetensors file."""
    try:
        with path.open("rb") as opened:
            _demand(header_length(opened.read(8)) <= MOST_HEADER, "its header is too long")
        return load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(f"{path} is not a whole file of tensors ({error})") from error


def header_length(content: bytes) -> int:
    """Return how long the header of a safetensors file says that it is, from the file's first bytes."""
    return int.from_bytes(content[:8], "little")


@dataclass(frozen=True)
class _Header:
    """What a .npy file says of its array, and where that begins."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    begin: int


def _header(opened: IO[bytes], size: int) -> _Header:
    """Read the header of a .npy file of so many bytes; refuse objects, and an array of any other length."""
    version = npy.read_magic(opened)
    _demand(version in ((1, 0), (2, 0)), f"version {version} of the format")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read_header(opened)
    _demand(not dtype.hasobject, "it holds Python objects, which are never read")
    left = size - opened.tell()
    _demand(math.prod(shape) * dtype.itemsize == left, f"an array of shape {shape} has {left:,} bytes")
    return _Header(shape, "F" if is_fortran else "C", dtype, opened.tell())


def _demand(holds: bool, message: str) -> None:
    if not holds:
        raise ArchiveError(message)
