"""The process that Flower starts for every message."""

import subprocess
import sys


def test_it_does_not_wait_for_torch() -> None:
    code = "import sys, fedfomo.flower.client_app, fedfomo.flower.errands; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
