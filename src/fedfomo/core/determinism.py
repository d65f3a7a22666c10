"""What decides the order of sums, hence their last bits: threads, of which there is one, and vector instructions."""

from __future__ import annotations

import platform
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def one_blas_thread() -> Generator[None]:
    """Let BLAS compute in one thread: one flipped bit can move an item to another cluster, or change a logged ε."""
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=THREADS):
        yield


def processor() -> str:
    """Return what kind of processor this is, as far as the system says."""
    try:
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in reversed(lines)}
    kind = [
        f"{name.removeprefix('cpu ')} {facts[name]}" for name in ("cpu family", "model", "stepping") if name in facts
    ]
    return ", ".join([facts.get("model name", platform.machine()), *kind])


def instructions() -> str:
    """Return the vector instructions that torch computes with here."""
    return torch.backends.cpu.get_cpu_capability()
