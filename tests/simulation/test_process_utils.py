"""Processes end with the one they work for, also if it was gone before they could ask."""

import os
import subprocess
import sys

import pytest

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
