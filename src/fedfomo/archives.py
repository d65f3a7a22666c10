"""Files of arrays from anywhere, read without trusting what they say of themselves."""

from __future__ import annotations

import math
from io import BytesIO
from pathlib import Path
from typing import IO, Any, cast
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from fedfomo.errors import InputError

MOST_TIMES = 100
"""What unpacks to more than so many times its size is no data; a bomb of zeros unpacks to a thousand times."""
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
                arrays[info.filename.removesuffix(".npy")] = _array(content)
            return arrays
    except ArchiveError:
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


def _array(content: bytearray) -> NDArray[Any]:
    opened: IO[bytes] = BytesIO(content)
    version = npy.read_magic(opened)
    _demand(version in ((1, 0), (2, 0)), f"version {version} of the format")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, is_fortran, dtype = read_header(opened)
    _demand(not dtype.hasobject, "it holds Python objects, which are never read")
    begin = opened.tell()
    size = len(content) - begin
    _demand(math.prod(shape) * dtype.itemsize == size, f"an array of shape {shape} has {size:,} bytes")
    return np.ndarray(shape, dtype, content, begin, order="F" if is_fortran else "C")


def _demand(holds: bool, message: str) -> None:
    if not holds:
        raise ArchiveError(message)
