"""What Linux does for processes: it ends workers with their parent, gives them large pages, takes memory back."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_NEVER = 2**31 - 1
_COLLECTED_AFTER = 100_000, 50, 100  # new objects; young collections; those of the middle generation
_RESERVED = 512 * 2**20  # bytes of address space; memory only once it is used


def exit_with_parent(parent: int) -> None:
    """Let the system kill this process as soon as its parent is gone, where it can.

    A coordinator that is killed cannot end its workers. They would find out when they report: until then they would
    train, and write, beside the workers of whoever resumes the run.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def rare_collections() -> Generator[None]:
    """Look for garbage in cycles less often, and put the thresholds back afterwards.

    Scores, references and messages of thousands of clients are many objects and no cycles: looking through them again
    and again takes a quarter of the coordinating process's time.
    """
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def use_huge_pages() -> None:
    """Let this process's heap grow into large pages, where the system has them.

    A convolution's feature maps are megabytes that are allocated, swept through once, and freed, step after step. In
    pages of 4 kB, looking up addresses takes a noticeable part of a training step; in pages of 2 MB, next to none.
    """
    libc = _glibc()
    if libc is None:
        return
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    # Everything comes from the heap, and the heap is never given back: then its pages stay as they are.
    libc.mallopt(_MMAP_THRESHOLD, _NEVER)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    block: int | None = libc.malloc(_RESERVED)
    if block is not None:
        start = -(-block // mmap.PAGESIZE) * mmap.PAGESIZE
        libc.madvise(start, _RESERVED - mmap.PAGESIZE, mmap.MADV_HUGEPAGE)
        libc.free(block)


def trim_heap() -> None:
    """Give free memory back to the system, where it lies between blocks that are in use.

    The coordinating process allocates rows of tables for a moment, and small messages between them that stay. The holes
    between messages are often too small for the next row: without this, the heap grows to twice what is in use.
    """
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """Return the C library, if it is the one whose allocator these functions steer."""
    if sys.platform != "linux":
        return None
    libc = ctypes.CDLL(None)
    return libc if hasattr(libc, "gnu_get_libc_version") else None
