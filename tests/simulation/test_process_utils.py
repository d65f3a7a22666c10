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
