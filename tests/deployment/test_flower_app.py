"""The example runs under `flwr run` on Flower's simulation engine, and its models are FedFomo's."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from fedfomo.deployment.subprocesses import marked

ROOT = Path(__file__).parents[2]
APP = ROOT / "examples" / "flower_app"
PAGE = ROOT / "docs" / "flower_app.md"


@pytest.mark.deployment
def test_the_example_runs_as_the_page_says(tmp_path: Path) -> None:
    """From a copy that nothing was prepared for, in a home where Flower has never been."""
    shutil.copytree(APP, tmp_path / "examples" / "flower_app")
    (command,) = [line.strip() for line in PAGE.read_text().splitlines() if line.startswith("    cd examples")]
    programs = str(Path(sys.executable).parent)
    home = str(tmp_path / "home")
    around = {**os.environ, "HOME": home, "FLWR_HOME": f"{home}/.flwr", "PATH": f"{programs}:{os.environ['PATH']}"}
    Path(home).mkdir()
    try:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=around, capture_output=True, text=True, check=False, timeout=400
        )
    finally:  # the SuperLink that Flower starts for itself stays
        for pid in marked(f"FLWR_HOME={home}/.flwr"):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    told = done.stdout + done.stderr
    assert "6 personalised models" in told, told
    accuracies = [float(found) for found in re.findall(r"'accuracy': ['\"]?([0-9.e+-]+)", told)]
    assert len(accuracies) >= 3, told
    assert accuracies[-1] > 0.8, told
    assert "node 5" in (tmp_path / "home" / "flower_app.html").read_text()


def test_less_than_ten_lines_make_it_fedfomo() -> None:
    marked = [line for path in APP.rglob("*.py") for line in path.read_text().splitlines() if "# FedFomo" in line]
    assert 0 < len(marked) < 10
