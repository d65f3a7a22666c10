"""Data sets: what there is to learn, divided once and for all into a training part and a test part."""

import hashlib
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedfomo.core.data import Examples
from fedfomo.core.lazy_data import spread
from fedfomo.core.rng import numpy_stream
from fedfomo.core.trees import leaves

MOST_HASHED = 64  # examples of a part that is read lazily


@dataclass(frozen=True)
class DataSet:
    """Float32 images (N, C, H, W) in [0, 1], int64 labels, and a hash that tells this set from any other."""

    name: str
    train: Examples
    test: Examples
    num_classes: int
    fingerprint: str


def load_digits() -> DataSet:
    """Read the 1,797 handwritten digits of 8×8 pixels that ship with scikit-learn.

    Its own reader would import scikit-learn and pandas: a second, and 100 MB in every process.
    """
    place = find_spec("sklearn")
    assert place is not None and place.submodule_search_locations  # noqa: PT018, S101 - it is a dependency
    rows = np.loadtxt(Path(place.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    inputs = torch.from_numpy((rows[:, :-1].reshape(-1, 8, 8) / 16).astype(np.float32)).unsqueeze(1)
    labels = rows[:, -1].astype(np.int64)
    train, test = stratified_division(labels, test_fraction=0.2)
    everything = Examples(inputs, torch.from_numpy(labels))
    train_part, test_part = everything.take(torch.from_numpy(train)), everything.take(torch.from_numpy(test))
    return DataSet("digits", train_part, test_part, num_classes=10, fingerprint=fingerprint(train_part, test_part))


def stratified_division(
    labels: npt.NDArray[np.int64], test_fraction: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Divide a set that ships without a test part: an equal share of every label, always the same one."""
    test: list[npt.NDArray[np.int64]] = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        # The seed is fixed: a test set that moved with the run's seed would make runs incomparable.
        order = numpy_stream(0, "train/test division", int(label)).permutation(len(members))
        test.append(members[order[: round(test_fraction * len(members))]])
    in_test = np.zeros(len(labels), dtype=np.bool_)
    if test:
        in_test[np.concatenate(test)] = True
    return np.flatnonzero(~in_test), np.flatnonzero(in_test)


def fingerprint(*parts: Examples) -> str:
    """Hash every input and label of all parts, in their order; of those read lazily, the number and a sample."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode() if part.is_lazy else b"")
        few = spread(part, MOST_HASHED) if part.is_lazy else part
        for tensor in leaves((few.inputs, few.labels)):
            digest.update(repr((tuple(tensor.shape), str(tensor.dtype))).encode())
            digest.update(np.ascontiguousarray(tensor.numpy()).data)
    return digest.hexdigest()
