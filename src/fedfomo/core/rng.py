"""Random numbers that depend on their purpose only.

Every draw comes from a generator made for one purpose, such as ("dispatch", round 3, client 7). Nobody shares
a generator, so the order in which clients are visited, and the process that visits them, change nothing.
"""

import hashlib
import random
from collections.abc import Callable, Generator
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
def layer_rng(rng: torch.Generator, device: torch.device | None = None) -> Generator[None]:
    """Let layers that know only the default generators (dropout) draw reproducibly, and leave no trace."""
    seed = layer_seed(rng)
    if device is None or device.type == "cpu":
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield
    else:
        with torch.random.fork_rng(device_type=device.type):
            torch.manual_seed(seed)  # of the CPU and of the accelerators
            yield


@contextmanager
def forked_rng() -> Generator[Callable[[int], None]]:
    """Let a user's code draw from the default generators of torch, NumPy and Python, and leave no trace.

    It draws from the seed that the function in hand was called with last.
    """
    python, legacy = random.getstate(), np.random.get_state()  # what random transforms draw from

    def seed_all(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)

    with torch.random.fork_rng(devices=[]):
        try:
            yield seed_all
        finally:
            random.setstate(python)
            np.random.set_state(legacy)


def state_seed(rng: torch.Generator) -> int:
    """Return a seed that says where a generator stands, without drawing from it."""
    return int.from_bytes(hashlib.blake2b(rng.get_state().numpy().tobytes(), digest_size=8).digest(), "big") >> 1


def derived_seed(seed: int, *purpose: Purpose) -> int:
    """Return the seed of one purpose, for generators that are seeded by a number."""
    return _digest(seed, purpose) >> 65


def _digest(seed: int, purpose: tuple[Purpose, ...]) -> int:
    # repr keeps ("a", 1) apart from ("a1",) and 1 apart from "1".
    parts = [part if isinstance(part, str) else int(part) for part in (seed, *purpose)]
    text = repr(tuple(parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")
