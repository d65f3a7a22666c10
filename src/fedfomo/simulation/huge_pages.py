"""Large memory pages for worker processes.

A convolution's feature maps are megabytes that are allocated, swept through once, and freed, step after step. In
pages of 4 kB, looking up addresses takes a noticeable part of a training step; in pages of 2 MB, next to none. Linux
gives large pages to whoever asks for them, and the C library's allocator does not ask by itself.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_NEVER = 2**31 - 1
_RESERVED = 512 * 2**20  # bytes of address space; memory only once it is used


def use_huge_pages() -> None:
    """Let this process's heap grow into large pages, where the system has them; elsewhere, do nothing."""
    if sys.platform != "linux":
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # other C libraries have other allocators
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
