"""What is installed was looked at, and nothing that runs calls anybody."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scorecard import ROOT, Torture

ENCLOSED = Path(__file__).with_name("no_network.py")
APART = ["unshare", "--map-root-user", "--net"]
CALL = "import socket; socket.socket().connect_ex(('192.0.2.1', 443))"
DATAGRAM = "import socket; socket.socket(type=socket.SOCK_DGRAM).connect_ex(('192.0.2.1', 53))"
FEDERATION = """
import sys
from pathlib import Path
from federations import SITES, federation, same
with federation(Path(sys.argv[1]), "--rounds", "2", "--min-clients", "3", "--max-sites", "3") as made:
    made.start_server()
    made.start_sites(*SITES)
    made.wait()
    assert same(made.models(), made.simulated())
"""


@pytest.fixture
def _apart() -> None:
    if shutil.which("unshare") is None or subprocess.run([*APART, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine does not allow surroundings without a network (unshare --net)")


def _sent(*command: str, loopback: str = "shut") -> dict[str, int]:
    """Run a Python command where there is no network, see it succeed, and return what it tried to send."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    enclosed = [*APART, sys.executable, str(ENCLOSED), loopback, sys.executable, *command]
    done = subprocess.run(enclosed, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.usefixtures("_apart")
def test_a_run_calls_nobody(torture: Torture, tmp_path: Path) -> None:
    small = ["--clients", "6", "--distributions", "2", "--rounds", "2", "--workers", "1"]
    words = ["demo", "--seeds", "0"] if torture.is_full else ["run", *small]
    sent = _sent("-m", "fedfomo", *words, "--out", str(tmp_path / "run"))
    planted = [_sent("-c", code)["turned away"] for code in (CALL, DATAGRAM)]
    assert min(planted) > 0, "a call, or a datagram, would be counted"
    torture.record(
        "30b",
        "a run calls nobody",
        f"`fedfomo {words[0]}` where there is no network, not even loopback, and the kernel counts attempts",
        f"it runs to its end; attempts to send anything: {sum(sent.values())} (a planted one is counted)",
        not any(sent.values()),
        counted=sent,
        counted_when_planted=planted,
    )


@pytest.mark.usefixtures("_apart")
def test_a_federation_calls_nobody_else(torture: Torture, tmp_path: Path) -> None:
    if not torture.is_full:
        pytest.skip("takes a minute: in the full form only")
    sent = _sent("-c", FEDERATION, str(tmp_path), loopback="open")
    assert sent["connections"] > 0, "server and sites did speak with each other"
    assert _sent("-c", CALL, loopback="open")["turned away"] > 0, "a call elsewhere would be counted"
    torture.record(
        "30c",
        "server and sites of a federation call nobody but each other",
        "three sites and a server where there is nothing but loopback, and the kernel counts attempts",
        f"the federation ends with the simulator's bits; {sent['connections']} connections by loopback, attempts to"
        f" reach anything else: {sent['turned away']}, datagrams (names looked up): {sent['datagrams']}",
        sent["turned away"] == sent["datagrams"] == 0,
        counted=sent,
    )


def _wheel(folder: Path) -> Path:
    path = folder / "planted-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("planted.py", "")
        wheel.writestr("planted-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
        wheel.writestr("planted-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("planted-1.0.dist-info/RECORD", "")
    return path


def _is_taken(lock: str, folder: Path) -> bool:
    """Let pip follow a lock, as the Makefile does, where nothing is to be had but one wheel."""
    (folder / "lock").write_text(lock)
    place = ["--no-index", "--find-links", str(folder), "--no-deps", "--target", str(folder / "installed")]
    command = [sys.executable, "-m", "pip", "install", *place, "--upgrade", "--requirement", str(folder / "lock")]
    return subprocess.run(command, capture_output=True, cwd=folder).returncode == 0


def test_a_file_with_another_hash_is_not_installed(torture: Torture, tmp_path: Path) -> None:
    lock = (ROOT / "requirements.lock").read_text()
    packages = [line for line in lock.splitlines() if not line.startswith(" ")]
    wheel = _wheel(tmp_path)
    line = f"planted==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    assert _is_taken(line, tmp_path)
    with zipfile.ZipFile(wheel, "a") as tampered:
        tampered.writestr("more.py", "")
    assert _is_taken("planted==1.0\n", tmp_path), "without a hash, whatever comes is taken"
    is_refused = not _is_taken(line, tmp_path)
    is_locked = all("==" in package for package in packages) and lock.count("==") <= lock.count("--hash=sha256:")
    torture.record(
        "30",
        "what is installed is what was looked at",
        "a package whose file was changed is offered under the version that is locked",
        f"refused; {len(packages)} of {len(packages)} packages have versions and hashes ({lock.count('--hash='):,})",
        is_refused and is_locked,
    )
