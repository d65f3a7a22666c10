"""Samples that are in a place twice: a model is then judged on what it has seen."""

from __future__ import annotations

import hashlib
from itertools import combinations

import numpy as np

from fedfomo.examples import ClientData, Examples


def parts_of(own: ClientData) -> dict[str, Examples]:
    """Return a site's three parts by name."""
    return {"training": own.train, "validation": own.validation, "test": own.test}


def fingerprints(examples: Examples) -> list[bytes]:
    """Return one for each input: equal inputs have equal ones."""
    inputs = examples.inputs.contiguous()
    return [hashlib.blake2b(np.ascontiguousarray(row.numpy()).data, digest_size=16).digest() for row in inputs]


def in_two_parts(own: ClientData) -> list[tuple[str, str, int]]:
    """Return which two parts of a site share samples, and how many."""
    prints = {part: set(fingerprints(examples)) for part, examples in parts_of(own).items()}
    shared = [(one, other, len(prints[one] & prints[other])) for one, other in combinations(prints, 2)]
    return [(one, other, number) for one, other, number in shared if number]
