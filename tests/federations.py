"""Federations of real processes on this machine, which tests start, hurt and compare with the simulator."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from fedfomo.algorithms import make_algorithm
from fedfomo.core.client import Client
from fedfomo.deployment.experiments import mean
from fedfomo.deployment.settings import SERVER_VARIABLE, FederationFolder, SiteFolder
from fedfomo.deployment.subprocesses import free_port, marked, wait_until
from fedfomo.deployment.user_model import load_model, load_own_data
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

SITES = ("leeds", "turin", "lyon")
FINISH = 400.0  # seconds; a busy machine takes long
END = 180.0  # seconds for a process that was told to end


class Federation:
    """A federation in a folder, and those of its processes that run; of FedFomo, unless another method is named."""

    def __init__(self, place: Path, *settings: str, sites: Sequence[str] = SITES, address: str = "") -> None:
        self.folder = FederationFolder(place / "federation")
        self.address = address or f"127.0.0.1:{free_port()}"
        self.output = place / "output"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        method = () if "--method" in settings else ("--method", "fedfomo")
        flags = ["--folder", str(self.folder.path), "--address", self.address, "--seed", "3", *method, *settings]
        fedfomo("init", "--sites", ",".join(sites), *flags)

    def site(self, name: str) -> SiteFolder:
        return SiteFolder(self.folder.sites / name)

    def start_server(self) -> None:
        self._start("server", str(self.folder.path))

    def start_experiment(self, name: str, *flags: str) -> None:
        self._start("server", name, str(self.folder.path), *flags, verb="run")

    def start_sites(self, *names: str, flags: Sequence[str] = ()) -> None:
        for name in names:
            self._start(name, str(self.site(name).path), *flags)

    def _start(self, name: str, *arguments: str, verb: str = "") -> None:
        verb = verb or ("server" if name == "server" else "site")
        command = [sys.executable, "-m", "fedfomo", "deploy", verb, *arguments]
        with self.output.open("ab") as output:
            self._running[name] = subprocess.Popen(command, stdout=output, stderr=output)

    def wait(self) -> str:
        """Wait until the server is done and return all that was printed."""
        code = self._running["server"].wait(FINISH)
        assert code == 0, self.told()
        return self.told()

    def told(self) -> str:
        logs = [self.output, *self.folder.path.glob("*/flower.log"), *self.folder.path.glob("*/*/*.log")]
        return "\n".join(path.read_text(errors="replace") for path in logs if path.exists())

    def rounds_done(self) -> int:
        return int(json.loads(self.folder.status.read_bytes())["rounds_done"]) if self.folder.status.exists() else 0

    def wait_for(self, what: Callable[[], bool]) -> None:
        """Wait for something to happen while the server runs."""
        server = self._running["server"]
        assert wait_until(lambda: what() or server.poll() is not None, FINISH), self.told()
        assert what(), self.told()

    def pid(self, name: str, program: str) -> int:
        """Find one of the processes below one that was started here."""
        found = [pid for pid in below(self._running[name].pid) if program in command_of(pid)]
        assert len(found) == 1, (name, program, found)
        return found[0]

    def wait_for_reports(self) -> None:
        """Wait until every site has said whether federating pays."""
        reports = [self.site(site.name).report for site in self.all()]
        assert wait_until(lambda: all(report.exists() for report in reports), FINISH), self.told()

    def stop(self, name: str) -> None:
        process = self._running.pop(name)
        process.terminate()
        process.wait(END)

    def close(self) -> None:
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            process.wait(END)

    def models(self) -> dict[str, dict[str, Tensor]]:
        """Return the personalised models that lie at the sites."""
        return {site.name: load_file(self.site(site.name).models / "personalised.safetensors") for site in self.all()}

    def all(self) -> list[Any]:
        return self.folder.registry()

    def simulated(self) -> dict[str, dict[str, Tensor]]:
        return simulated(self.folder)

    def rounds(self) -> list[dict[str, Any]]:
        lines = (self.folder.server / "run" / "rounds.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


def simulated(folder: FederationFolder, starts: Mapping[int, Tensor] | None = None) -> dict[str, dict[str, Tensor]]:
    """Return what the simulator makes of the same sites, which may start from models of their own."""
    config = folder.config()
    own = load_model(folder.model, config.seed)
    sites = sorted(folder.registry(), key=lambda site: site.slot)
    data = [load_own_data(folder.sites / s.name / "data.py", None, s.name, config.seed, own) for s in sites]
    initial = own.initial if starts is None else mean(starts)
    problem = FederatedProblem(own.model, initial, data, config.training, config.seed)
    algorithm: Any = make_algorithm(config.method, config.options)
    kind: Any = type(algorithm)

    class Warm(kind):
        def personalise(self, client: Client, download: Any, memory: Any) -> Any:
            if starts is not None and client.round == 0:
                memory = self.start_client(replace(client.start, initial=starts.get(client.id, initial)))
            return kind.personalise(self, client, download, memory)

    played = algorithm if starts is None else Warm(**vars(algorithm))
    result = simulate(problem, played, SimulationConfig(config.rounds, config.participation))
    network = problem.model_of(algorithm)
    return {site.name: network.state_dict(result.models[place]) for place, site in enumerate(sites)}


@contextmanager
def federation(place: Path, *settings: str, sites: Sequence[str] = SITES) -> Iterator[Federation]:
    made = Federation(place, *settings, sites=sites)
    try:
        yield made
    finally:
        made.close()


def fedfomo(*arguments: str) -> str:
    command = [sys.executable, "-m", "fedfomo", "deploy", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def same(one: dict[str, dict[str, Tensor]], other: dict[str, dict[str, Tensor]]) -> bool:
    return one.keys() == other.keys() and all(
        one[site].keys() == other[site].keys() and all(torch.equal(one[site][n], other[site][n]) for n in one[site])
        for site in one
    )


def below(pid: int) -> list[int]:
    """Return all processes that one has started, and those that these have."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    waiting = [pid]
    while waiting:
        waiting = [child for parent in waiting for child in children.get(parent, [])]
        found += waiting
    return found


def command_of(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return " ".join(Path(word).name for word in words[:4])
    return ""


def kill(pid: int) -> None:
    """Kill a process and see it dead."""
    os.kill(pid, signal.SIGKILL)
    gone = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and _state(pid) not in ("Z", "X"):
        assert time.monotonic() < gone
        time.sleep(0.01)


def megabytes_of(pid: int, which: str = "VmRSS") -> float:
    """Return the memory of a process, with "VmHWM" the most that it had, with "Pss" its share; 0 if it has ended."""
    with suppress(OSError, StopIteration):
        lines = Path(f"/proc/{pid}/{'smaps_rollup' if which == 'Pss' else 'status'}").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(which)).split()[1]) / 1000
    return 0.0


def megabytes(folder: FederationFolder, program: str, which: str = "VmRSS") -> float:
    """Return the same of one of the server's processes."""
    pids = [pid for pid in marked(f"{SERVER_VARIABLE}={folder.path}") if program in command_of(pid)]
    return max((megabytes_of(pid, which) for pid in pids), default=0.0)


@contextmanager
def peak_megabytes(folder: FederationFolder) -> Iterator[dict[str, float]]:
    """Note the most memory that the server's processes have while this is open."""
    peaks = {"flower-superlink": 0.0, "flwr-serverapp": 0.0}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.3):
            for program, known in peaks.items():
                peaks[program] = max(known, megabytes(folder, program, "VmHWM"))

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield peaks
    finally:
        done.set()
        watching.join()


@contextmanager
def asleep(made: Federation, name: str) -> Iterator[None]:
    """Stop all processes of a site, and let them go on afterwards."""
    pids = [made._running[name].pid, *below(made._running[name].pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert wait_until(lambda: all(_state(pid) in ("T", "Z", "X") for pid in pids), 30)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


class Tap:
    """A listener on the wire: passes everything on to an address, and keeps it."""

    def __init__(self, to: str) -> None:
        self.heard = bytearray()
        host, _, port = to.rpartition(":")
        self._to = host, int(port)
        self._door = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._listen, daemon=True).start()

    def close(self) -> None:
        self._door.close()

    def received(self, content: bytes) -> None:
        """See what passes by."""
        self.heard += content

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._door.accept()
                try:
                    called = socket.create_connection(self._to)
                except OSError:
                    caller.close()
                    continue
                for one, other in ((caller, called), (called, caller)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while content := one.recv(65536):
                self.received(content)
                other.sendall(content)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
