"""Flower's named arrays ↔ one flat vector: trainable coordinates first, running statistics behind them."""

from __future__ import annotations

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from torch import Tensor

from fedfomo.core.archives import decode_npy

NPY_ALIGNMENT = 64  # bytes by which headers of the same shape may differ: columns first is a letter shorter
STATISTICS = ("running_mean", "running_var")  # of BatchNorm: averaged with the rest, but no part of distances


def flatten(record: ArrayRecord) -> tuple[Tensor, int]:
    """Return all float32 arrays as one vector, and how many of its coordinates are trainable."""
    names = _names(record)
    pieces = [torch.from_numpy(decode_npy(record[name].data).ravel().copy()) for name in names]
    sizes = [len(piece) for name, piece in zip(names, pieces, strict=True) if not name.endswith(STATISTICS)]
    return (torch.cat(pieces) if pieces else torch.empty(0)), sum(sizes)


def unflatten(theta: Tensor, like: ArrayRecord) -> ArrayRecord:
    """Return a record like another with a vector's values; arrays of other types are the other's own."""
    values: dict[str, Array] = dict(like.items())
    begin = 0
    for name in _names(like):
        shape = like[name].shape
        end = begin + int(np.prod(shape))
        values[name] = Array(theta[begin:end].numpy().reshape(shape).copy())
        begin = end
    return ArrayRecord({name: values[name] for name in like})  # pyright: ignore[reportArgumentType]


def misfit(record: ArrayRecord, like: ArrayRecord) -> str | None:
    """Say in what a record differs from another, by all that can be told before its arrays are read."""
    if list(record) != list(like):
        return "its arrays have other names than the model's"
    for name, array in record.items():
        for what in ("stype", "dtype", "shape"):
            if getattr(array, what) != getattr(like[name], what):
                return f"the {what} of '{name}' is not that of the model"
        if len(array.data) > len(like[name].data) + NPY_ALIGNMENT:
            return f"'{name}' has {len(array.data)} bytes, the model's has {len(like[name].data)}"
    return None


def _names(record: ArrayRecord) -> list[str]:
    floats = [name for name, array in record.items() if array.dtype == "float32"]
    return sorted(floats, key=lambda name: name.endswith(STATISTICS))  # stable: otherwise in the record's order
