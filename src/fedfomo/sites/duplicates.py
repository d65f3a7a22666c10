"""Samples that are in a place twice: a model is then judged on what it has seen."""

from __future__ import annotations

import hashlib
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfomo.core.data import ClientData, Examples


def parts_of(own: ClientData) -> dict[str, Examples]:
    """Return a site's three parts by name."""
    return {"training": own.train, "validation": own.validation, "test": own.test}


def fingerprints(examples: Examples) -> list[bytes]:
    """Return one for each example: equal inputs with equal labels have equal ones."""
    labels = examples.labels.double()  # a class is the same in whole numbers and in fractions
    return [_hash(own.numpy(), label.numpy()) for own, label in zip(examples.inputs, labels, strict=True)]


def in_two_parts(own: ClientData) -> list[tuple[str, str, int]]:
    """Return which two parts of a site share samples, and how many."""
    prints = {part: set(fingerprints(examples)) for part, examples in parts_of(own).items()}
    shared = [(one, other, len(prints[one] & prints[other])) for one, other in combinations(prints, 2)]
    return [(one, other, number) for one, other, number in shared if number]


def _hash(*arrays: NDArray[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
