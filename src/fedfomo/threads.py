"""What decides the order of sums, hence their last bits: threads, of which there is one, and vector instructions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

THREADS = 1


@contextmanager
def one_torch_thread() -> Generator[None]:
    """Compute in one thread, as worker processes do, and put the number back afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def instructions() -> str:
    """Return the vector instructions that torch computes with here."""
    return torch.backends.cpu.get_cpu_capability()
