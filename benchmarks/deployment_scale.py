"""Real federations of many sites on this machine: time of a round and memory, beside the simulator's for the same work.

    python benchmarks/deployment_scale.py [--memory] [NUMBER OF SITES …]

Every site is a process as `fedfomo deploy site` starts it; from 50 sites on, sites are threads of one process, since
so many copies of torch do not fit. All share the machine with the server. One run each; what else the machine did is
told by the load before. With --memory, figures of memory are renewed and those of time kept, which a busy machine would
spoil; nothing else may run in the same environment, for it would share the memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from measure import RESULTS, RoundTimer, report

from fedfomo.algorithms import make_algorithm
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.deployment.subprocesses import free_port
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

ROUNDS = 4
MOST_PROCESSES = 49
FEDFOMO = [sys.executable, "-m", "fedfomo", "deploy"]


def main() -> None:
    """Measure for some numbers of sites, and keep the figures beside those of other numbers."""
    kept = RESULTS / "deployment_scale.json"
    before: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    figures = {what: value for what, value in before.items() if what.endswith(" sites")}
    numbers = [int(word) for word in sys.argv[1:] if word != "--memory"]
    for number in numbers or [3, 10, 30, 100]:
        found = measure(number)
        if "--memory" in sys.argv:
            found = {what: value for what, value in found.items() if what.startswith("megabytes")}
        figures |= {f"{what}, {number} sites": value for what, value in found.items()}
        sys.stdout.write(f"{number} sites: {json.dumps(found)}\n")
        sys.stdout.flush()
    report("deployment_scale", {**figures, "command": "python benchmarks/deployment_scale.py", "rounds": ROUNDS})


def measure(number: int) -> dict[str, Any]:
    """Play a federation of so many sites and return its figures."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        folder = FederationFolder(Path(place) / "federation")
        names = [f"site{k}" for k in range(number)]
        flags = ["--rounds", str(ROUNDS), "--min-clients", str(number), "--epochs", "1", "--max-sites", str(number)]
        address = ["--address", f"127.0.0.1:{free_port()}", "--startup-timeout", "1200"]
        command = [*FEDFOMO, "init", "--sites", ",".join(names), "--folder", str(folder.path), *address, *flags]
        subprocess.run(command, check=True, capture_output=True)  # noqa: S603
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        running = [subprocess.Popen([*FEDFOMO, "server", str(folder.path)], **quiet)]  # noqa: S603
        stop = threading.Event()
        if number <= MOST_PROCESSES:
            for name in names:
                running.append(subprocess.Popen([*FEDFOMO, "site", str(folder.sites / name)], **quiet))  # noqa: S603
        else:
            _start_threads(folder, names, stop)
        try:
            found = watch(folder, running[0], number)
        finally:
            stop.set()
            for process in running:
                process.send_signal(signal.SIGTERM)
            for process in running:
                process.wait()
        return {**found, "simulated seconds a round": simulated(folder), "load before": round(load, 1)}


def _start_threads(folder: FederationFolder, names: list[str], stop: threading.Event) -> None:
    from fedfomo.deployment.resident_node import ResidentNode
    from fedfomo.deployment.site_client import Worker

    for name in names:
        site = SiteFolder(folder.sites / name)
        node = ResidentNode(site, Worker(site, None).handle, lambda words: None, stop)
        threading.Thread(target=node.run, daemon=True).start()


def watch(folder: FederationFolder, server: subprocess.Popen[bytes], number: int) -> dict[str, Any]:
    """Note the memory of every kind of process at its largest, and the time of every round."""
    peaks: dict[str, float] = {}
    seconds: dict[int, float] = {}
    first = None
    began = time.monotonic()
    while server.poll() is None:
        totals: dict[str, list[float]] = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, StopIteration, ValueError):
                if str(folder.path).encode() not in (path / "environ").read_bytes():
                    continue
                lines = (path / "smaps_rollup").read_text().splitlines()
                own = int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1000
                totals.setdefault(_kind((path / "cmdline").read_text()), []).append(own)
        for kind, found in totals.items():
            peaks[kind] = max(peaks.get(kind, 0.0), sum(found) / (number if kind == "site" else 1))
        with suppress(OSError, ValueError):
            told = json.loads(folder.status.read_bytes())
            if "seconds" in told:
                seconds[told["rounds_done"]] = told["seconds"]
            elif not told["missing"] and first is None:
                first = time.monotonic() - began
        time.sleep(1.0)
    later = [value for number, value in seconds.items() if number > 1]
    return {
        "seconds until all are on line": first,
        "seconds a round": median(later),
        "megabytes a site": peaks.get("site"),
        "megabytes, SuperLink": peaks.get("superlink"),
        "megabytes, ServerApp": peaks.get("serverapp"),
    }


def _kind(command: str) -> str:
    if "resident_node" in command:
        return "site"
    for kind in ("flower-superlink", "flwr-serverapp"):
        if kind in command:
            return kind.partition("-")[2]
    return "other"


def simulated(folder: FederationFolder) -> float:
    """Return what the simulator takes for a round of the same work."""
    from fedfomo.deployment.user_model import load_model, load_own_data

    config = folder.config()
    own = load_model(folder.model, config.seed)
    sites = sorted(folder.registry(), key=lambda site: site.slot)
    data = [load_own_data(folder.sites / s.name / "data.py", None, s.name, config.seed, own) for s in sites]
    problem = FederatedProblem(own.model, own.initial, data, config.training, config.seed)
    clock = RoundTimer()
    simulate(problem, make_algorithm(config.method, config.options), SimulationConfig(ROUNDS), callback=clock)
    return median(clock.rounds()[1:])


if __name__ == "__main__":
    main()
