"""Decoded image sets on disk, memory-mapped so that all worker processes share one copy.

A set is stored under its fingerprint, so it is stored once, whatever files it came from. A small note per source
says which set its files hold; it is valid as long as no file's place, size or time of change differs.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedfomo.core.archives import map_npy
from fedfomo.core.data import Examples
from fedfomo.datasets.bundled import DataSet
from fedfomo.errors import InputError
from fedfomo.io import write_atomically

_ARRAYS = ("train_inputs", "train_labels", "test_inputs", "test_labels")


def cache_folder() -> Path:
    """Return the folder for what can be computed again: $FEDFOMO_CACHE, or ~/.cache/fedfomo."""
    chosen = os.environ.get("FEDFOMO_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "fedfomo"


def cached(files: Iterable[Path], read: Callable[[], DataSet], folder: Path) -> DataSet:
    """Return the set that these files hold, memory-mapped; it is read and stored only if it is not there yet."""
    note = folder / "sources" / f"{_key(files)}.json"
    with suppress(EOFError, OSError, RecursionError, TypeError, ValueError, KeyError):
        return _load(note, folder)
    data = read()
    try:
        _store(data, note, folder)
        return _load(note, folder)
    except OSError as error:
        raise InputError(
            f"cannot store '{data.name}' in {folder} ({error.strerror or error}): "
            "set FEDFOMO_CACHE to a folder with room that you may write to"
        ) from error


def _key(files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        # A link's own place counts too: its folders say the class, and whether it is for training.
        places = str(file.absolute()), str(file.resolve())
        digest.update(repr((places, status.st_size, status.st_mtime_ns)).encode())
    return digest.hexdigest()


def _load(note: Path, folder: Path) -> DataSet:
    facts: dict[str, Any] = json.loads(note.read_text())
    train_inputs, train_labels, test_inputs, test_labels = _map(folder / "sets" / facts["fingerprint"])
    return DataSet(
        name=facts["name"],
        train=Examples(train_inputs, train_labels),
        test=Examples(test_inputs, test_labels),
        num_classes=facts["num_classes"],
        fingerprint=facts["fingerprint"],
    )


def _map(home: Path) -> list[Tensor]:
    # Copy-on-write: pages are shared until written to, and torch takes no read-only memory without complaint.
    files = (home / f"{name}.npy" for name in _ARRAYS)
    return [torch.from_numpy(map_npy(file, "c")) for file in files]


def _store(data: DataSet, note: Path, folder: Path) -> None:
    home = folder / "sets" / data.fingerprint
    home.parent.mkdir(parents=True, exist_ok=True)
    note.parent.mkdir(parents=True, exist_ok=True)
    if not _is_whole(home):
        _store_arrays(data, home)
    facts = {"name": data.name, "num_classes": data.num_classes, "fingerprint": data.fingerprint}
    write_atomically(note, (json.dumps(facts, indent=2) + "\n").encode())


def _store_arrays(data: DataSet, home: Path) -> None:
    # The folder appears complete or not at all, so several processes may store the same set at the same time.
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".new-", ignore_cleanup_errors=True) as new:
        tensors = (data.train.inputs, data.train.labels, data.test.inputs, data.test.labels)
        for name, tensor in zip(_ARRAYS, tensors, strict=True):
            np.save(Path(new) / f"{name}.npy", tensor.numpy(), allow_pickle=False)
        shutil.rmtree(home, ignore_errors=True)
        try:
            Path(new).rename(home)
        except OSError:
            if not _is_whole(home):
                raise


def _is_whole(home: Path) -> bool:
    try:
        _map(home)
    except (EOFError, OSError, TypeError, ValueError):
        return False
    return True
