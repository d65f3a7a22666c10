"""Everything that can be set for a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fedfomo.core.local_training import Sgd
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.errors import require, unknown
from fedfomo.privacy.config import Privacy
from fedfomo.runs.trackers import TRACKERS
from fedfomo.simulation.config import SimulationConfig

# What suits a data set: smaller batches for digits, of which a client has a few dozen; the paper's own rate for MNIST;
# for all of the paper's sets inputs on one scale, and for photographs the variations with which its authors trained.
DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"batch_size": 20},
    "mnist": {"learning_rate": 0.01, "standardise": True},
    "cifar10": {"standardise": True, "augment": True},
    "cifar100": {"standardise": True, "augment": True},
}

# Settings that say where a run is computed and who is told of it: no result depends on them.
NOT_RESULT_RELEVANT = ("data", "workers", "executor", "track")


@dataclass(frozen=True)
class ExperimentConfig:
    """Experiment settings."""

    dataset: str = "digits"
    """The data set: digits ships with the library; any other is read from the folder given by --data."""
    data: Path | None = None
    """Folder that holds the data set."""
    standardise: bool = False
    """Bring every channel to mean 0 and deviation 1 over the training part; usual for mnist, cifar10 and cifar100."""
    network: str = "auto"
    """mlp, small_cnn (of the authors' code), mcmahan_cnn or vgg11; auto: mlp for small images, else small_cnn."""
    scenario: Annotated[ScenarioConfig, tyro.conf.arg(name="")] = field(default_factory=ScenarioConfig)
    training: Annotated[Sgd, tyro.conf.arg(name="")] = field(default_factory=lambda: Sgd(**DATASET_DEFAULTS["digits"]))
    privacy: Privacy = field(default_factory=Privacy)
    rounds: int = 20
    """Communication rounds."""
    participation: float = 1.0
    """Share of the clients that take part in a round, drawn anew in each."""
    client_dropout: float = 0.0
    """Chance that a client of a round fails before it trains."""
    late_fraction: float = 0.0
    """Chance that a client of a round trains, but uploads after the round has closed."""
    evaluate_every: int = 1
    """Evaluate clients on their test data in every so many rounds, and always in the last."""
    workers: int | None = None
    """Worker processes; by default one per core, 0 for none. The result does not depend on it."""
    executor: Literal["processes", "ray"] = "processes"
    """Where workers run: processes on this machine, or ray for a cluster of machines; the result is the same."""
    device: str = "cpu"
    """Device of PyTorch: cpu, cuda, cuda:1, mps. All but cpu are used by one process."""
    vectorise: bool = True
    """Train many small clients together where that is faster, exact to rounding; without it, exact to the bit."""
    track: tuple[str, ...] = ()
    """Trackers that every round is logged to: tensorboard, mlflow, wandb; rounds.jsonl is written in any case."""

    def __post_init__(self) -> None:
        self.plan()
        for tracker in self.track:
            if tracker not in TRACKERS:
                raise unknown("tracker", tracker, TRACKERS)
        is_alone = not self.privacy.is_on or self.scenario.share_fraction == 0
        require(is_alone, "with privacy, clients cannot share examples: leave out --share-fraction")
        is_possible = self.executor == "processes" or self.device.partition(":")[0] == "cpu"
        require(is_possible, f"a Ray cluster computes on cpu, not {self.device}: leave out --device or --executor")

    def plan(self, default_workers: int = 0) -> SimulationConfig:
        """Return how the rounds are played."""
        return SimulationConfig(
            rounds=self.rounds,
            participation=self.participation,
            evaluate_every=self.evaluate_every,
            workers=default_workers if self.workers is None else self.workers,
            vectorise=self.vectorise,
            executor=self.executor,
            client_dropout=self.client_dropout,
            late_fraction=self.late_fraction,
        )


def label_of(method: str) -> str:
    """Return the name by which a method is shown, and its options are given: the class, if it comes from a file."""
    return method.rpartition(":")[2]


@dataclass(frozen=True)
class RunConfig:
    """Run one method and keep everything about it in a folder.

    Give a TOML file first to start from its values: fedfomo run settings.toml --rounds 5. Options of a method are
    flags of their own, such as --fedprox.mu 0.01, and listed by: fedfomo run --method fedprox --help.
    """

    method: str = "fedfomo"
    """The method; `fedfomo methods` lists them. One of your own: path/to/file.py:Class."""
    options: tyro.conf.Suppress[Mapping[str, Any]] = field(default_factory=dict[str, Any])
    seed: int = 0
    """Seed of all random draws: clients' data, initial model, cohorts, shuffles, exploration."""
    out: Path | None = None
    """Folder for the run; it must not exist yet. By default runs/ and the time."""
    setting: Annotated[ExperimentConfig, tyro.conf.arg(name="")] = field(default_factory=ExperimentConfig)


@dataclass(frozen=True)
class CompareConfig:
    """Run several methods on the same clients, over several seeds, and show one table.

    Local training is always among them, as the baseline of every client. Options of a method are flags of their own,
    such as --fedprox.mu 0.01, and listed by: fedfomo compare --methods fedprox --help.
    """

    methods: tuple[str, ...] = ("local", "fedavg", "fedavg-finetuned", "fedfomo")
    """The methods, or the word all. One of your own: path/to/file.py:Class."""
    options: tyro.conf.Suppress[Mapping[str, Mapping[str, Any]]] = field(default_factory=dict[str, Any])
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of every method for each."""
    out: Path | None = None
    """Folder for the runs; it must not exist yet. By default runs/ and the time."""
    setting: Annotated[ExperimentConfig, tyro.conf.arg(name="")] = field(default_factory=ExperimentConfig)

    def __post_init__(self) -> None:
        require(bool(self.methods), "give at least one method; `fedfomo methods` lists them")
        is_alone = "all" not in self.methods or len(self.methods) == 1
        require(is_alone, "all stands for every method that can run: leave out the others, or all")
        require(bool(self.seeds), "give at least one seed")
        require(len(set(self.seeds)) == len(self.seeds), "a seed is given twice: it would count one run as two")
