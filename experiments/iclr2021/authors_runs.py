"""The authors' protocol beside ours, switch by switch: `python -m experiments.iclr2021.authors_runs --data FOLDER`.

On features every switch that does not need images is played alone and together with the others; on images, with the
authors' CNN, all of them together. A finished run is a line of results/authors/runs.jsonl, and is not computed again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import tyro

from experiments.iclr2021.authors_protocol import (
    Protocol,
    make_method,
    prepare_protocol,
    share_of_class_0,
    with_diverged_kept,
)
from experiments.iclr2021.features.compute import Readings, accuracies
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.settings import ROUNDS
from fedfomo.cli.main import run_and_exit
from fedfomo.cli.terminal import console, warn
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.runs.callbacks import RunBar
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.config_io import build
from fedfomo.runs.provenance import source_digest
from fedfomo.simulation.callbacks import Callbacks
from fedfomo.simulation.simulate import simulate

RUNS = "runs"
METHODS = ("local", "fedavg", "fedfomo")
SINGLE = ("same_ten", "classes_twice", "first_epoch", "as_coded")
"""Switches that features can show; diverged models are noted in every run."""
TOGETHER = ("same_ten", "classes_twice", "first_epoch", "as_coded", "keep_diverged")
DIGITS = 4


@dataclass(frozen=True)
class AuthorsRun:
    """One run: on what, how long, by which method, under which protocol."""

    dataset: str
    scenario: str
    clients: int
    rounds: int
    method: str
    protocol: Protocol
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """What tells this run from others."""
        return {
            "dataset": self.dataset,
            "scenario": self.scenario,
            "clients": self.clients,
            "rounds": self.rounds,
            "method": self.method,
            "protocol": self.protocol.name,
            "seed": self.seed,
        }

    @property
    def is_meaningful(self) -> bool:
        """Whether the protocol differs from ours for this method."""
        only_fedfomo = self.protocol in (Protocol(first_epoch=True), Protocol(as_coded=True))
        return self.method == "fedfomo" or not only_fedfomo

    def setting(self, data: Path) -> ExperimentConfig:
        """Return the setting; the paper's, but for the number of rounds."""
        values: dict[str, Any] = {
            "dataset": self.dataset,
            "data": str(data),
            "standardise": True,
            "scenario": self.scenario,
            "clients": self.clients,
            "rounds": self.rounds,
            "participation": ROUNDS[self.clients][1],
            "learning_rate": 0.1,
            "batch_size": 50,
            "workers": 0,
        }
        return build(ExperimentConfig, values)


def planned(images: bool, seeds: int, rounds: int) -> Iterator[AuthorsRun]:
    """Yield the runs of one kind, in order of importance."""
    if images:
        everything = Protocol.of(["authors"])
        yield from (
            AuthorsRun("cifar10", "pathological", 100, rounds, m, everything, s) for s in range(seeds) for m in METHODS
        )
        return
    protocols = [Protocol(), Protocol.of(TOGETHER), *(Protocol.of([name]) for name in SINGLE)]
    for seed in range(seeds):
        for protocol in protocols:
            for method in METHODS:
                run = AuthorsRun("cifar10-features", "pathological", 100, rounds, method, protocol, seed)
                if run.is_meaningful:
                    yield run


def compute(run: AuthorsRun, data: Path, work: Path) -> dict[str, Any]:
    """Play a run, or what an interruption left of it, and return its line."""
    setting = run.setting(data)
    prepared = prepare_protocol(setting, run.seed, run.method, run.protocol)
    problem, simulation = prepared.problem, prepared.simulation
    algorithm = make_method(run.method, run.protocol)
    readings = Readings()
    name = f"{run.method}, {run.protocol.name}, seed {run.seed}"
    digest = hashlib.sha256(repr((run, source_digest(), prepared.data.fingerprint)).encode()).hexdigest()
    folder = work / digest[:16]
    folder.mkdir(parents=True, exist_ok=True)
    cohort = max(1, round(simulation.participation * len(problem.clients)))
    directory = RunDirectory(folder, digest, warn)
    try:
        with RunBar(console, name, simulation.rounds, cohort, len(problem.clients)) as bar:
            result = simulate(problem, algorithm, simulation, directory, Callbacks(readings, bar))
    finally:
        directory.close()
    shutil.rmtree(folder)
    final = accuracies(result.after_update)
    diverged = [client for client, number in result.refusals.items() if number]
    kept = final
    if run.protocol.keep_diverged:
        kept = with_diverged_kept(final, diverged, share_of_class_0(problem.clients), run.method)
    return {
        **run.key,
        "accuracy": round(100 * fmean(kept.values()), 2),
        "guarded": round(100 * fmean(final.values()), 2),
        "diverged": len(diverged),
        "clients_scored": len(final),
        "one_class": sum(len(client.train.labels.unique()) == 1 for client in problem.clients),
        "by_client": [round(value, DIGITS) for _, value in sorted(kept.items())],
        "curve": [round(fmean(reading.values()), DIGITS) for reading in readings.rounds if reading],
        "source": source_digest()[:12],
    }


@dataclass(frozen=True)
class AuthorsConfig:
    """Play Local Training, FedAvg and FedFomo on 100 clients of two classes under the authors' protocol and ours."""

    data: Path
    """Folder with cifar10-features.npz, or with --images cifar10.npz."""
    images: bool = False
    """Images and the authors' CNN, all switches together, instead of features and every switch."""
    seeds: int = 3
    rounds: int = 100
    """The paper's are 100; a shorter run is a prefix of it, since step sizes depend on the round only."""
    results: Path = Path("results/authors")
    work: Path = Path("runs/authors")
    """Folder of runs that are not finished."""


def authors(arguments: list[str]) -> None:
    """Compute the runs that are missing."""
    config = tyro.cli(AuthorsConfig, args=arguments, prog="python -m experiments.iclr2021.authors_runs")
    store = Store(config.results)
    waiting = [
        run
        for run in planned(config.images, config.seeds, config.rounds)
        if not any(run.key.items() <= line.items() for line in store.lines(RUNS))
    ]
    for number, run in enumerate(waiting, 1):
        console.print(f"{number} of {len(waiting)}: {run.key}", soft_wrap=True)
        store.append(RUNS, compute(run, config.data, config.work))


if __name__ == "__main__":
    run_and_exit(authors)
