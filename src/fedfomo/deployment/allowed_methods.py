"""Which methods a real federation runs: none that sends examples as they are, whoever asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedfomo.algorithms import make_algorithm
from fedfomo.algorithms.registry import file_of
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.errors import InputError


def make_method(name: str, options: Mapping[str, Any]) -> AnyAlgorithm:
    """Build a method, at the server and again at every site; refuse one that takes data out of the sites."""
    if file_of(name) is not None:  # a server must not choose which file a site runs
        raise InputError(
            f"method '{name}' comes from a file, and no real federation runs it: install it at the server and at every"
            " site as a package with an entry point of the group fedfomo.algorithms"
        )
    algorithm = make_algorithm(name, options)
    if algorithm.uploads_examples:
        raise InputError(
            f"method '{name}' sends examples of the sites as they are, and no real federation runs it:"
            " choose another method"
        )
    return algorithm
