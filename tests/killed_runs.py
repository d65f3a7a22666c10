"""Real runs in processes of their own that can be killed, for the price of a fork.

Python, torch and the data are there before the fork; everything else (folder, lock, workers, checkpoints, models,
result) is what `fedfomo run` and `fedfomo resume` do.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any

from faults import Disk
from fedfomo.algorithms import make_algorithm
from fedfomo.cli.main import main
from fedfomo.core.local_training import Sgd
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.errors import InputError
from fedfomo.runs import own_problem
from fedfomo.runs.config import ExperimentConfig, RunConfig
from fedfomo.runs.config_io import write_toml
from fedfomo.runs.run import run_or_resume, start_run
from fedfomo.runs.setup import Prepared, prepare
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.executors import WorkerLostError
from fedfomo.simulation.simulate import simulate

KILLED = -signal.SIGKILL
PATIENCE = 60.0  # seconds for a run of a second or two


def fingerprint(folder: Path) -> str:
    """Hash all that a run promises to reproduce: models, log, affinity, scores."""
    digest = hashlib.sha256()
    for path in sorted([*folder.glob("models/*"), *folder.glob("affinity/*"), folder / "rounds.jsonl"]):
        digest.update(path.name.encode() + path.read_bytes())
    result = json.loads((folder / "result.json").read_text())
    del result["seconds"]
    digest.update(json.dumps(result, sort_keys=True).encode())
    return digest.hexdigest()


def config_of(method: str = "fedfomo", rounds: int = 3, clients: int = 4, seed: int = 0, **setting: Any) -> RunConfig:
    scenario = ScenarioConfig(clients=clients, distributions=2)
    setting = {"training": Sgd(batch_size=200, epochs=1), "workers": 0, **setting}
    return RunConfig(method, seed=seed, setting=ExperimentConfig(scenario=scenario, rounds=rounds, **setting))


_prepared: dict[str, Prepared] = {}


def prepared_for(config: RunConfig) -> Prepared:
    spelt_out = write_toml(config)
    if spelt_out not in _prepared:
        _prepared[spelt_out] = prepare(config.setting, config.seed)
        # Whatever torch and others load with their first computation is then there before the fork.
        plan = replace(_prepared[spelt_out].simulation, rounds=1)
        simulate(_prepared[spelt_out].problem, make_algorithm(config.method), plan)
    return _prepared[spelt_out]


@dataclass(frozen=True)
class Ending:
    """How a process ended, and what it told until then."""

    exit_code: int | None
    began_at: int | None  # the rounds that its checkpoint had; None: it did not come so far
    rounds: tuple[int, ...]  # that it finished
    told: tuple[str, ...]
    error: str | None  # what it raised
    seconds: float

    @property
    def finished(self) -> int:
        """How many rounds of the run it knew to be finished."""
        return max([self.began_at or 0, *(n + 1 for n in self.rounds)])


class Running:
    """A run, or what is left of it, in a process of its own."""

    def __init__(
        self, folder: Path, config: RunConfig, workers: int = 0, first: Callable[[], None] = lambda: None
    ) -> None:
        prepared = prepared_for(config)
        prepared = replace(prepared, simulation=replace(prepared.simulation, workers=workers))
        self._began = time.monotonic()
        ours, theirs = multiprocessing.Pipe(duplex=False)
        self.process = _fork(lambda: _play(folder, config, prepared, first, theirs))
        theirs.close()
        self._heard = ours

    def kill(self, after: float = 0.0) -> Ending:
        """Kill the process some seconds after its start, if it is still there, and wait for its end."""
        _wait(self.process, self._began + after)
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        return self.end()

    def end(self) -> Ending:
        """Wait for the end."""
        _wait(self.process, time.monotonic() + PATIENCE)
        assert not self.process.is_alive(), "the run hangs"
        seconds = time.monotonic() - self._began
        heard: list[tuple[str, Any]] = []
        while self._heard.poll():
            try:
                heard.append(tuple(json.loads(self._heard.recv_bytes())))
            except (EOFError, OSError):
                break
        self._heard.close()

        def of(kind: str) -> tuple[Any, ...]:
            return tuple(value for told, value in heard if told == kind)

        began, error = [*of("began"), None][0], [*of("error"), None][0]
        return Ending(self.process.exitcode, began, of("round"), of("told"), error, seconds)


def run_to_end(folder: Path, config: RunConfig, workers: int = 0, first: Callable[[], None] = lambda: None) -> Ending:
    """Run, or resume, until the end."""
    return Running(folder, config, workers, first).end()


class Alone:
    """A run that is left alone."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        disk = Disk(folder)
        self.ending = run_to_end(folder, config, first=disk.stand_between)
        assert self.ending.exit_code == 0
        self.steps = disk.steps
        self.bits = fingerprint(folder)
        self.files = _files(folder)

    def fault_in(self, folder: Path, finished: int, resumed: Ending) -> str | None:
        """Say in what a run that was resumed after some finished rounds differs; None: in nothing."""
        if resumed.exit_code != 0:
            return f"could not go on: {resumed.error}"
        if resumed.began_at is not None and resumed.began_at < finished:
            return "a finished round was run again"
        if _files(folder) != self.files:
            return f"files: {_files(folder) ^ self.files}"
        return None if fingerprint(folder) == self.bits else "other bits"


def _files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def command(
    arguments: Sequence[str], config: RunConfig, workers: int = 0, first: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Type `fedfomo` and some arguments; return the exit code and what was said where errors are."""
    prepared = prepared_for(config)
    prepared = replace(prepared, simulation=replace(prepared.simulation, workers=workers))

    def work() -> None:
        sys.stderr = said
        sys.stdout = io.StringIO()
        own_problem.prepare_any = lambda setting, seed: prepared
        first()
        main(arguments)

    with tempfile.TemporaryFile("w+") as said:
        process = _fork(work)
        _wait(process, time.monotonic() + PATIENCE)
        said.seek(0)
        return process.exitcode or 0, said.read()


def _fork(work: Callable[[], None]) -> ForkProcess:
    process = multiprocessing.get_context("fork").Process(target=work)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        process.start()
    return process


def _wait(process: ForkProcess, until: float) -> None:
    while process.is_alive() and time.monotonic() < until:  # join would wait for orphans too
        time.sleep(0.002)


class _Teller(Callback):
    """Passes on what it is told to the process that waits for this one."""

    def __init__(self, to: Connection) -> None:
        self._to = to

    def tell(self, kind: str, value: Any) -> None:
        self._to.send_bytes(json.dumps((kind, value)).encode())

    def start(self, rounds_done: int) -> None:
        self.tell("began", rounds_done)

    def round_done(self, finished: FinishedRound) -> None:
        self.tell("round", finished.round)


def _play(folder: Path, config: RunConfig, prepared: Prepared, first: Callable[[], None], to: Connection) -> None:
    teller = _Teller(to)
    first()
    try:
        if not (folder / "config.toml").exists():
            folder.mkdir(exist_ok=True)
            start_run(config, folder, prepared)
        run_or_resume(folder, prepared, teller, lambda text: teller.tell("told", text))
    except (InputError, OSError, WorkerLostError) as error:
        teller.tell("error", f"{type(error).__name__}: {error}")
        os._exit(2)
