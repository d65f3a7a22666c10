"""The example runs under `flwr run` on Flower's simulation engine, and its models are FedFomo's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfomo.deployment.subprocesses import ProcessGroup, answers, environment, free_port, program, wait_until

pytestmark = pytest.mark.deployment

APP = Path(__file__).parents[2] / "examples" / "flower_app"


@pytest.fixture
def superlink(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Start a SuperLink for simulations and return the surroundings of whoever talks to it."""
    port = free_port()
    around = environment(tmp_path / "flower", {"PYTHONPATH": str(APP)})
    address = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (tmp_path / "flower" / "config.toml").write_text(address)
    command = [program("flower-superlink"), "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        link = ProcessGroup(command, around, log)
    try:
        assert wait_until(lambda: answers("127.0.0.1", port), 60)
        yield around
    finally:
        link.end()


def test_the_example_runs_on_the_simulation_engine(superlink: dict[str, str]) -> None:
    flwr = str(Path(sys.executable).parent / "flwr")
    nodes = "num-supernodes=4 client-resources-num-cpus=1"
    command = [flwr, "run", str(APP), "here", "--stream", "--federation-config", nodes]
    done = subprocess.run(command, env=superlink, capture_output=True, text=True, check=False, timeout=400)
    told = done.stdout + done.stderr
    assert "4 personalised models" in told, told
    accuracies = [float(found) for found in re.findall(r"'accuracy': ['\"]?([0-9.e+-]+)", told)]
    assert len(accuracies) >= 3, told
    assert accuracies[-1] > 0.8, told


def test_less_than_ten_lines_make_it_fedfomo() -> None:
    marked = [line for path in APP.rglob("*.py") for line in path.read_text().splitlines() if "# FedFomo" in line]
    assert 0 < len(marked) < 10
