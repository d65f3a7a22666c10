"""A real federation on this machine: time, memory and bytes of a round, for a small and a large network.

Three sites, a SuperLink, TLS, authentication and sealing as in any federation; hardly any training, so that what is
measured is everything else. Beside the time stands what the bytes alone would take on a link of 1 Gbit/s.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from fedfomo.deployment.subprocesses import free_port

SITES = ("leeds", "turin", "lyon")
GIGABIT = 125e6  # bytes a second
MODELS = {
    "CNN, 122,570 parameters": "from fedfomo.core.networks import small_cnn\n\n\n"
    "def make_model():\n    return small_cnn((3, 32, 32), 10)\n",
    "perceptron, 11.0 million": "from torch import nn\n\n\ndef make_model():\n    return nn.Sequential("
    "nn.Flatten(), nn.Linear(3072, 3000), nn.ReLU(), nn.Linear(3000, 600), nn.ReLU(), nn.Linear(600, 10))\n",
}
DATA = """
import torch


def load_data(folder, site):
    def some(number):
        return torch.rand(number, 3, 32, 32), torch.arange(number) % 10
    return some(20), some(20)
"""


def main() -> None:
    """Print one line for every network and number of bits."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    sys.stdout.write(
        "network | bits | s a round | MB down | MB up | s at 1 Gbit/s | SuperLink | ServerApp | SuperNode | worker\n"
    )
    for name, model in MODELS.items():
        for bits in (32, 8):
            sys.stdout.write(f"{name} | {bits} | {measure(model, bits, rounds)}\n")
            sys.stdout.flush()


def measure(model: str, bits: int, rounds: int) -> str:
    """Run a federation and return its figures."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "federation"
        flags = ["--rounds", str(rounds), "--min-clients", "3", "--epochs", "1", "--bits", str(bits)]
        address = ["--address", f"127.0.0.1:{free_port()}"]
        fedfomo = [sys.executable, "-m", "fedfomo", "deploy"]
        command = [*fedfomo, "init", "--sites", ",".join(SITES), "--folder", str(folder), *address, *flags]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        for file in (folder, *(folder / "sites" / site for site in SITES)):
            (file / "model.py").write_text(model)
        for site in SITES:
            (folder / "sites" / site / "data.py").write_text(DATA)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        verbs = [["server", str(folder)], *(["site", str(folder / "sites" / site), "--supernode"] for site in SITES)]
        running = [subprocess.Popen([*fedfomo, *verb], **quiet) for verb in verbs]  # noqa: S603
        try:
            return watch(folder, running[0])
        finally:
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                process.wait()


def watch(folder: Path, server: subprocess.Popen[bytes]) -> str:
    """Note the peak memory of every kind of process, and the time of every round but the first."""
    peaks: dict[str, int] = {}
    seconds: dict[int, float] = {}
    status = folder / "server" / "status.json"
    while server.poll() is None:
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, StopIteration, ValueError):
                kind = kind_of((path / "cmdline").read_text())
                lines = (path / "status").read_text().splitlines()
                peak = int(next(line for line in lines if line.startswith("VmHWM")).split()[1])
                peaks[kind] = max(peaks.get(kind, 0), peak)
        with suppress(OSError, ValueError):
            told = json.loads(status.read_bytes())
            seconds[told["rounds_done"]] = told["seconds"]
        time.sleep(0.5)
    later = sorted(value for number, value in seconds.items() if number > 1)
    floor = (told["bytes_sent"] + told["bytes_received"]) / GIGABIT
    memory = " | ".join(
        f"{peaks.get(kind, 0) / 1000:.0f} MB" for kind in ("superlink", "serverapp", "supernode", "worker")
    )
    return (
        f"{later[len(later) // 2]:.1f} | {told['bytes_sent'] / 1e6:.2f} | {told['bytes_received'] / 1e6:.2f} |"
        f" {floor:.2f} | {memory}"
    )


def kind_of(command: str) -> str:
    """Tell Flower's processes apart."""
    if "site_client" in command:
        return "worker"
    for kind in ("flower-superlink", "flwr-serverapp", "flower-supernode"):
        if kind in command:
            return kind.partition("-")[2]
    return ""


if __name__ == "__main__":
    main()
