"""Files that try to run code, fill memory or write elsewhere when they are opened, under whatever name.

Every payload that runs leaves a file in the folder of canaries.
"""

from __future__ import annotations

import gzip
import io
import json
import marshal
import pickle
import random
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch


class _Payload:
    """Calls something as soon as it is unpickled."""

    def __init__(self, call: Callable[..., Any], *arguments: Any) -> None:
        self._call = call
        self._arguments = arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call, self._arguments


def hostile_files(canaries: Path, count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Make so many hostile files, no two of them alike."""
    rng = random.Random(seed)  # noqa: S311 - the same files every time
    for number in range(count):
        mark = str(canaries / f"canary-{number}")
        kind = KINDS[number % len(KINDS)]
        yield f"{kind.__name__.strip('_')} {number}", kind(mark, rng)


def _pickled(mark: str, rng: random.Random) -> bytes:
    import os

    calls: list[_Payload] = [
        _Payload(os.system, f"touch {mark}"),
        _Payload(exec, f"open({mark!r}, 'w')"),
        _Payload(eval, f"open({mark!r}, 'w')"),
        _Payload(os.mkdir, mark),
        _Payload(Path.touch, Path(mark)),
        _Payload(open, mark, "w"),
    ]
    return pickle.dumps({"model": rng.choice(calls), "epoch": rng.randrange(99)}, protocol=rng.randrange(6))


def _torch_zip(mark: str, rng: random.Random) -> bytes:
    opened = io.BytesIO()
    torch.save({"weight": torch.zeros(2), "bad": _Payload(open, mark, "w")}, opened)
    return opened.getvalue()


def _torch_legacy(mark: str, rng: random.Random) -> bytes:
    opened = io.BytesIO()
    torch.save(_Payload(open, mark, "w"), opened, _use_new_zipfile_serialization=False)
    return opened.getvalue()


def _object_npy(mark: str, rng: random.Random) -> bytes:
    opened = io.BytesIO()
    np.save(opened, np.array([_Payload(open, mark, "w")] * rng.randint(1, 4), dtype=object), allow_pickle=True)
    return opened.getvalue()


def _object_npz(mark: str, rng: random.Random) -> bytes:
    opened = io.BytesIO()
    bad = np.array([_Payload(open, mark, "w")], dtype=object)
    names = ("inputs", "labels", "x_train", "y_train", "x_test", "y_test", "fingerprint", "accuracy", "train_2")
    np.savez(opened, allow_pickle=True, **dict.fromkeys(names, bad))
    return opened.getvalue()


def _prefixed_pickle(mark: str, rng: random.Random) -> bytes:
    """Return a pickle behind the first bytes of another format."""
    heads = (b"\x93NUMPY\x01\x00", b"\x89PNG\r\n\x1a\n", b"\x00\x00\x08\x03", b"PK\x03\x04", b"\x1f\x8b", b"{}", b"")
    return rng.choice(heads) + _pickled(mark, rng)


def _marshalled(mark: str, rng: random.Random) -> bytes:
    return b"\x00" * rng.randrange(17) + marshal.dumps(compile(f"open({mark!r}, 'w')", "x", "exec"))


def _source(mark: str, rng: random.Random) -> bytes:
    lines = [f"open({mark!r}, 'w')", f"__import__('os').system('touch {mark}')", f"(lambda: open({mark!r}, 'w'))()"]
    return f"{rng.choice(lines)}\n".encode()


def _yaml(mark: str, rng: random.Random) -> bytes:
    tags = ("!!python/object/apply:os.system", "!!python/object/new:os.system", "!!python/name:os.system")
    return f"method: {rng.choice(tags)}\n- ['touch {mark}']\n".encode()


def _settings(mark: str, rng: random.Random) -> bytes:
    values = (
        f"$(touch {mark})",
        f"`touch {mark}`",
        f"../../{mark}",
        "{{7*7}}",
        f"file://{mark}",
        "%n%s",
        f"{mark}\\u0000",
    )
    key = rng.choice(("method", "dataset", "data", "out", "network", "device", "scenario", "track", "options"))
    return f'{key} = "{rng.choice(values)}"\n'.encode()


def _document(mark: str, rng: random.Random) -> bytes:
    value: Any = {"__class__": "os.system", "py/object": "os.system", "$ref": f"file://{mark}", "x": f"touch {mark}"}
    names = ("after_update", "checkpoint", "sites", "federation", "name", "model", "config", "uploads")
    return json.dumps({**dict.fromkeys(names, value), "n": rng.random()}).encode()


def _tensors(mark: str, rng: random.Random) -> bytes:
    """Return a safetensors file whose header lies."""
    entry = {"dtype": rng.choice(("F32", "OBJECT", "__import__", "F" * 999)), "shape": [rng.choice((1, 10**12, -1))]}
    header = {
        name: {**entry, "data_offsets": [0, rng.choice((4, 10**12, -4))]} for name in ("x", "inputs", "../" + mark)
    }
    header["__metadata__"] = {"identity": "i", "step": f"__import__('os').system('touch {mark}')", "format": "pickle"}
    text = json.dumps(header).encode()
    return rng.choice((len(text), 10**15, 0)).to_bytes(8, "little") + text + _pickled(mark, rng)


def _escaping_zip(mark: str, rng: random.Random) -> bytes:
    opened = io.BytesIO()
    with zipfile.ZipFile(opened, "w") as archive:
        for name in (mark, "../" * rng.randint(1, 9) + mark.lstrip("/"), "x_train.npy", "inputs.npy"):
            archive.writestr(name, _pickled(mark, rng))
    return opened.getvalue()


def _escaping_tar(mark: str, rng: random.Random) -> bytes:
    opened = io.BytesIO()
    with tarfile.open(fileobj=opened, mode="w:gz") as archive:
        member = tarfile.TarInfo(rng.choice((mark, "../" * 9 + mark.lstrip("/"))))
        member.size = 3
        archive.addfile(member, io.BytesIO(b"bad"))
    return opened.getvalue()


def _postscript(mark: str, rng: random.Random) -> bytes:
    """Return a picture that image libraries hand to another program."""
    return b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n" + f"({mark}) (w) file\n".encode()


def _packed_pickle(mark: str, rng: random.Random) -> bytes:
    return gzip.compress(_pickled(mark, rng))


KINDS = (
    *(_pickled, _torch_zip, _torch_legacy, _object_npy, _object_npz, _prefixed_pickle, _marshalled, _source, _yaml),
    *(_settings, _document, _tensors, _escaping_zip, _escaping_tar, _postscript, _packed_pickle),
)
