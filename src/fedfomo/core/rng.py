"""Random numbers that depend on their purpose only.

Every draw comes from a generator made for one purpose, such as ("dispatch", round 3, client 7). Nobody shares
a generator, so the order in which clients are visited, and the process that visits them, change nothing.
"""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import torch

Purpose = str | int


def stream(seed: int, *purpose: Purpose) -> torch.Generator:
    """Return the generator of one purpose."""
    return torch.Generator().manual_seed(_digest(seed, purpose) >> 65)


def numpy_stream(seed: int, *purpose: Purpose) -> np.random.Generator:
    """Return the generator of one purpose, for what only NumPy can draw."""
    return np.random.default_rng(_digest(seed, purpose))


def layer_seed(rng: torch.Generator) -> int:
    """Draw the seed of whatever layers draw; every training draws it first, whether its layers need it or not."""
    return int(torch.randint(2**62, (), generator=rng))


@contextmanager
def layer_rng(rng: torch.Generator) -> Generator[None]:
    """Let layers that know only torch's default generator (dropout) draw reproducibly, and leave no trace."""
    seed = layer_seed(rng)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def _digest(seed: int, purpose: tuple[Purpose, ...]) -> int:
    # repr keeps ("a", 1) apart from ("a1",) and 1 apart from "1".
    parts = [part if isinstance(part, str) else int(part) for part in (seed, *purpose)]
    text = repr(tuple(parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")
