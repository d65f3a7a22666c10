"""Processes end with the one they work for, also if it was gone before they could ask."""

import gc
import os
import subprocess
import sys

import pytest

from fedfomo.simulation.process_utils import rare_collections

WORKER = """
import sys
from fedfomo.simulation.process_utils import exit_with_parent

exit_with_parent(int(sys.argv[1]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's death")
def test_who_works_for_nobody_any_more_dies_at_once() -> None:
    for parent, code in ((os.getpid(), 0), (os.getppid(), -9)):
        done = subprocess.run([sys.executable, "-c", WORKER, str(parent)], check=False)
        assert done.returncode == code


def test_collections_of_garbage_are_as_often_as_before_once_a_run_has_ended() -> None:
    before = gc.get_threshold()
    with rare_collections():
        assert gc.get_threshold() > before
    assert gc.get_threshold() == before


HOLES = """
import ctypes
from pathlib import Path
from fedfomo.simulation.process_utils import trim_heap

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 // 2**20

blocks = [libc.malloc(60_000 if n % 2 else 100) for n in range(4000)]
for n, block in enumerate(blocks):
    ctypes.memset(block, 1, 60_000 if n % 2 else 100)
for block in blocks[1::2]:
    libc.free(block)
before = megabytes()
trim_heap()
print(before - megabytes())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc gives memory back on request")
def test_free_memory_between_blocks_in_use_is_given_back() -> None:
    shown = subprocess.run([sys.executable, "-c", HOLES], check=True, capture_output=True, text=True).stdout
    assert int(shown) > 80  # of 120 MB
