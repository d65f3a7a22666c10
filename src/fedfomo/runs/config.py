"""Everything that can be set for a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedfomo.core.local_training import Sgd
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.errors import require, unknown
from fedfomo.privacy.config import Privacy
from fedfomo.runs.trackers import TRACKERS

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
    """What methods are compared on: data, clients, network, training, length."""

    dataset: str = "digits"
    """The data set: digits ships with the library; any other is read from the folder given by --data."""
    data: Path | None = None
    """Folder that holds the data set."""
    standardise: bool = False
    """Bring every channel to mean 0 and deviation 1 over the training part; usual for mnist, cifar10 and cifar100."""
    network: str = "auto"
    """mlp, small_cnn (the authors' code has it), mcmahan_cnn or vgg11; auto: mlp for small images, else small_cnn."""
    scenario: ScenarioConfig = field(default_factory=ScenarioConfig)
    training: Sgd = field(default_factory=lambda: Sgd(**DATASET_DEFAULTS["digits"]))
    privacy: Privacy = field(default_factory=Privacy)
    rounds: int = 20
    """Communication rounds."""
    participation: float = 1.0
    """Share of the clients that take part in a round, drawn afresh each time."""
    dropout: float = 0.0
    """Chance that a client of a round fails before it has done anything."""
    lateness: float = 0.0
    """Chance that a client of a round does its work, and uploads after the round has closed: too late."""
    evaluate_every: int = 1
    """Score clients on their test data in every so many rounds, and always in the last."""
    workers: int | None = None
    """Worker processes; by default one per core, 0 for none. The result does not depend on it."""
    executor: Literal["processes", "ray"] = "processes"
    """Where workers run: processes on this machine, or ray for a cluster of machines; the result is the same."""
    device: str = "cpu"
    """Where networks are computed: cpu, cuda, cuda:1, mps. Anything but cpu is fed by one process."""
    stack: bool = True
    """Compute many small clients together where that is faster; without it, results are exact to the bit anywhere."""
    track: tuple[str, ...] = ()
    """Trackers to send every round's figures to: tensorboard, mlflow, wandb; rounds.jsonl is written in any case."""

    def __post_init__(self) -> None:
        require(self.rounds >= 1, f"rounds must be at least 1, not {self.rounds}")
        share = self.participation
        require(0 < share <= 1, f"participation must be above 0 and at most 1, not {share}")
        chances = self.dropout, self.lateness
        is_fair = min(chances) >= 0 and sum(chances) < 1
        require(is_fair, f"dropout and lateness must be at least 0 and together below 1, not {chances}")
        require(self.evaluate_every >= 1, f"evaluate_every must be at least 1, not {self.evaluate_every}")
        for tracker in self.track:
            if tracker not in TRACKERS:
                raise unknown("tracker", tracker, TRACKERS)
        require(self.workers is None or self.workers >= 0, f"workers must be at least 0, not {self.workers}")
        is_alone = not self.privacy.is_on or self.scenario.share_fraction == 0
        require(is_alone, "with privacy, clients cannot share examples: leave out --share-fraction")
        is_possible = self.executor == "processes" or self.device.partition(":")[0] == "cpu"
        require(is_possible, f"a Ray cluster computes on cpu, not {self.device}: leave out --device or --executor")


@dataclass(frozen=True)
class RunConfig:
    """Run one method and keep everything about it in a folder.

    Give a TOML file first to start from its values: fedfomo run settings.toml --rounds 5. Options of the method
    itself are listed by: fedfomo methods NAME.
    """

    method: str = "fedfomo"
    """The method; `fedfomo methods` lists them."""
    options: tuple[str, ...] = ()
    """Options of the method, as name=value."""
    seed: int = 0
    """Decides every random draw: clients' data, initial model, cohorts, shuffles, exploration."""
    out: Path | None = None
    """Folder for the run; it must not exist yet. By default runs/ and the time."""
    setting: ExperimentConfig = field(default_factory=ExperimentConfig)


@dataclass(frozen=True)
class CompareConfig:
    """Run several methods on the same clients, over several seeds, and show one table.

    Local training is always among them: it is the bar that a federation has to clear.
    """

    methods: tuple[str, ...] = ("local", "fedavg", "fedavg-finetuned", "fedfomo")
    """The methods, or the word all."""
    options: tuple[str, ...] = ()
    """Options of methods, as method.name=value."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of every method for each."""
    out: Path | None = None
    """Folder for the runs; it must not exist yet. By default runs/ and the time."""
    setting: ExperimentConfig = field(default_factory=ExperimentConfig)

    def __post_init__(self) -> None:
        require(bool(self.methods), "give at least one method; `fedfomo methods` lists them")
        require(bool(self.seeds), "give at least one seed")
        require(len(set(self.seeds)) == len(self.seeds), "a seed is given twice: it would count one run as two")
