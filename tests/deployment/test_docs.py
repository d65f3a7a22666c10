"""The first commands of docs/deploying.md, as a new user would type them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from fedfomo.deployment.subprocesses import answers

DOCS = Path(__file__).parents[2] / "docs" / "deploying.md"


def _commands() -> list[str]:
    block = DOCS.read_text().split("in six commands", 1)[1].split("Type them", 1)[0]
    return [line.strip() for line in block.splitlines() if line.startswith("    ")]


def test_there_are_six() -> None:
    commands = _commands()
    assert len(commands) == 6
    assert commands[0].startswith("pip install")


@pytest.mark.deployment
def test_six_commands_lead_from_nothing_to_models_on_disk(tmp_path: Path) -> None:
    if answers("127.0.0.1", 8443):
        pytest.skip("port 8443 of this machine is in use")
    programs = str(Path(sys.executable).parent)
    around = {**os.environ, "PATH": os.pathsep.join([programs, os.environ["PATH"]])}
    reports = " && ".join(f"[ -f federation/sites/{site}/report.html ]" for site in ("leeds", "turin", "lyon"))
    wait = f"for second in $(seq 200); do {reports} && break; sleep 1; done"
    script = "\n".join([*_commands()[1:], wait])  # the first one has been given
    with (tmp_path / "said").open("wb") as said:
        shell = subprocess.Popen(
            ["bash", "-e", "-c", f"trap 'kill $(jobs -p); wait' EXIT\n{script}"],
            cwd=tmp_path,
            env=around,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    try:
        code = shell.wait(420)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGTERM)
            shell.wait()
    told = (tmp_path / "said").read_text()
    assert code == 0, told
    assert "finished" in told
    for site in ("leeds", "turin", "lyon"):
        assert re.search(rf"{site}: \d+ of \d+ right", told), told
        assert (tmp_path / "federation" / "sites" / site / "report.html").exists()
        models = tmp_path / "federation" / "sites" / site / "models"
        assert load_file(models / "personalised.safetensors").keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    [loading] = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
    subprocess.run([sys.executable, "-c", loading], cwd=tmp_path, check=True)
