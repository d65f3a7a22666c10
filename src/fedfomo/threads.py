"""One torch thread: the number of threads decides the order of sums, hence their last bits."""

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
