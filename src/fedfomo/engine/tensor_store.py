"""Tensors that live in memory-mapped files, and references to them that are cheap to send.

A model travels from a worker process to the server and on to other workers as the name of a file and of a tensor
in it: it is written once, when it is made, and mapped wherever it is read. The same files are the body of a
checkpoint. A single number is no reason for a file: it is spelt out in the reference itself.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import mmap
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedfomo.core.messages import Flat
from fedfomo.errors import UNREADABLE, InputError, damaged
from fedfomo.io import write_atomically

References = dict[str, str]
"""From a field's name to "file#tensor", or to "=" and the tensor itself."""

HELD_AT_ONCE = 32_000_000  # bytes of mapped tensors; with more models than memory, a bound is wanted
MOST_HEADER = 50_000_000  # bytes: the tensors of half a million clients
SPELT_OUT = 16  # bytes, at most: a number or two

_Identity = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


class TensorStore:
    """A folder of safetensors files."""

    def __init__(self, folder: Path, durable: bool) -> None:
        self.folder = folder
        self.checksums: dict[str, str] = {}
        self._durable = durable
        self._held = 0  # bytes handed out since memory was last given back
        self._open: dict[str, _MappedFile] = {}
        self._known: dict[_Identity, str] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def reopen(self) -> TensorStore:
        """Return another view of the same folder, for another process."""
        return TensorStore(self.folder, self._durable)

    def save(self, name: str, flat: Mapping[str, Tensor], for_checkpoint: bool = True) -> References:
        """Refer to every tensor, writing to the file `name` those that lie in no file yet, each once.

        A file that no checkpoint will name needs neither a checksum nor to survive a power cut.
        """
        references: References = {}
        fresh: Flat = {}
        places: dict[_Identity, str] = {}
        for field, tensor in flat.items():
            if tensor.numel() * tensor.element_size() <= SPELT_OUT:
                references[field] = _spell_out(tensor)
                continue
            identity = _identity(tensor)
            place = self._known.get(identity) or places.get(identity)
            if place is None:
                place = places[identity] = f"{name}#{field}"
                fresh[field] = tensor
            references[field] = place
        if fresh:
            self._write(name, fresh, for_checkpoint)
        return references

    def load(self, references: References) -> Flat:
        """Map the tensors that the references name; saved again, they are not written again."""
        return {field: self._tensor(place) for field, place in references.items()}

    def load_once(self, references: References) -> Flat:
        """Map tensors that are not going to be saved again, and keep nothing of them here."""
        return {field: self._tensor(place, is_kept=False) for field, place in references.items()}

    def forget(self, keep: Iterable[str] = ()) -> None:
        """Unmap every file but those to keep."""
        for name in self._open.keys() - set(keep):
            self._unmap(name)

    def delete_all_but(self, keep: Iterable[str]) -> None:
        """Delete every file but those to keep."""
        kept = set(keep)
        self.forget(kept)
        self.checksums = {name: checksum for name, checksum in self.checksums.items() if name in kept}
        for path in self.folder.iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)

    def _tensor(self, place: str, is_kept: bool = True) -> Tensor:
        is_spelt_out = place.startswith("=")
        try:
            tensor = _read_out(place) if is_spelt_out else self._mapped(place, is_kept)
        except UNREADABLE as error:
            where = self.folder if is_spelt_out else self.folder / _file(place)
            raise damaged(where, "resume the run: it goes on from the checkpoint before", error) from error
        self.note_read(tensor.nbytes)
        return tensor

    def note_read(self, size: int) -> None:
        """Count bytes that were read, for the first time or again; give memory back when they are many."""
        self._held += size
        if self._held > HELD_AT_ONCE:
            self._release()

    def _mapped(self, place: str, is_kept: bool) -> Tensor:
        name, field = place.split("#", 1)
        file = self._open.get(name)
        if file is None:
            file = self._open[name] = _MappedFile(self.folder / name)
        tensor = file.tensors.get(field)
        if tensor is None:
            tensor = file.read(field)
            if is_kept:
                file.tensors[field] = tensor
                self._known[_identity(tensor)] = place
        return tensor

    def _unmap(self, name: str) -> None:
        """Forget what was read of a file; tensors that are in use stay valid."""
        for tensor in self._open.pop(name).tensors.values():
            self._known.pop(_identity(tensor), None)

    def _release(self) -> None:
        """Give back the memory of all that was read; the tensors stay valid, and are read again when needed."""
        for file in self._open.values():
            file.release()
        self._held = 0

    def _write(self, name: str, flat: Flat, for_checkpoint: bool) -> None:
        content = laid_out(flat)
        if for_checkpoint:
            checksum = hashlib.sha256()
            for piece in content:
                checksum.update(piece)
            self.checksums[name] = checksum.hexdigest()
        write_atomically(self.folder / name, *content, durable=self._durable and for_checkpoint)
        if name in self._open:  # it is another file from now on
            self._unmap(name)


class _Entry(msgspec.Struct, gc=False):
    """What the header of a safetensors file says of a tensor; a run may have hundreds of thousands of these."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


_HEADER = msgspec.json.Decoder(dict[str, _Entry])


class _MappedFile:
    """A safetensors file in memory as far as it was looked at, and no further than it is needed.

    The library's own reader maps files too, but cannot give memory back while tensors live; with more models than
    memory, that is the point. Python's `mmap` keeps the file open, of which a process may have a thousand; torch's
    does not.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
        try:
            mapped = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
        except RuntimeError as error:
            way_out = "raise the limits of the system"
            raise InputError(f"{path} cannot be mapped into memory ({error}): {way_out}") from error
        self._content: NDArray[np.uint8] = mapped.numpy()
        self._start = 8 + int.from_bytes(self._content[:8].tobytes(), "little")
        if self._start > MOST_HEADER:
            raise ValueError(f"a header of {self._start:,} bytes")
        try:
            self._header = _HEADER.decode(self._content[8 : self._start].tobytes())
        except msgspec.DecodeError as error:
            raise ValueError(str(error)) from error
        self.tensors: Flat = {}  # those that were looked at

    def read(self, name: str) -> Tensor:
        entry = self._header[name]
        kind, shape, (begin, end) = _DTYPES[entry.dtype], entry.shape, entry.data_offsets
        if not 0 <= begin <= end <= len(self._content) - self._start:
            raise ValueError(f"{name} lies outside the file")
        if begin == end:
            return torch.empty(shape, dtype=kind)
        count = (end - begin) // kind.itemsize
        return torch.frombuffer(self._content, dtype=kind, count=count, offset=self._start + begin).view(shape)

    def release(self) -> None:
        where, length = ctypes.c_void_p(self._content.ctypes.data), ctypes.c_size_t(self._content.nbytes)
        if _LIBC.madvise(where, length, mmap.MADV_DONTNEED) != 0:
            raise OSError(ctypes.get_errno(), "memory of a mapped file cannot be given back")


_LIBC = ctypes.CDLL(None, use_errno=True)


_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "U16": torch.uint16,
    "U32": torch.uint32,
    "U64": torch.uint64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_DTYPES_BY_WORD = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.values()}


def laid_out(flat: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """Return the pieces of a safetensors file, without a copy of what they hold.

    The library's own writer takes longer for the many short tensors of a round than all training of small clients.
    """
    header: dict[str, Any] = {}
    pieces: list[bytes | memoryview] = []
    end = 0
    # The widest numbers first: then every tensor is aligned.
    for name, tensor in sorted(flat.items(), key=lambda item: -item[1].element_size()):
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _DTYPE_NAMES[tensor.dtype], "shape": tensor.shape, "data_offsets": (begin, end)}
        pieces.append(_raw(tensor).data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *pieces]


def files_in(references: References) -> set[str]:
    """Return the files that references point into."""
    return {_file(place) for place in references.values() if not place.startswith("=")}


def _raw(tensor: Tensor) -> NDArray[np.uint8]:
    """Return a tensor's bytes, in place if they lie together; NumPy does not know every type of number."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()


def _identity(tensor: Tensor) -> _Identity:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _file(place: str) -> str:
    return place.split("#", 1)[0]


def _spell_out(tensor: Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    content = base64.b64encode(_raw(tensor).tobytes()).decode()
    return "=" + json.dumps([dtype, list(tensor.shape), content])


def _read_out(place: str) -> Tensor:
    dtype, shape, content = json.loads(place[1:])
    raw = bytearray(base64.b64decode(content))
    kind = _DTYPES_BY_WORD[dtype]
    return torch.frombuffer(raw, dtype=kind).view(shape) if raw else torch.empty(shape, dtype=kind)
