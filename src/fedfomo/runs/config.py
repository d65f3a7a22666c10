"""Everything that can be set for a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from fedfomo.core.local_training import Sgd
from fedfomo.core.method_names import label_of as label_of
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.errors import require, unknown
from fedfomo.privacy.config import Privacy
from fedfomo.simulation.config import SimulationConfig

# What suits a data set: smaller batches for digits, of which a client has a few dozen; the paper's own rate for MNIST;
# for all of the paper's sets inputs on one scale, and for photographs the variations with which its authors trained.
DATASET_DEFAULTS: dict[str, dict[str, Any]] = {
    "digits": {"batch_size": 20},
    "mnist": {"learning_rate": 0.01, "standardise": True},
    "cifar10": {"standardise": True, "augment": True},
    "cifar100": {"standardise": True, "augment": True},
}

VALIDATION_FRACTION = 0.5
"""Of a site's target, unless a caller says otherwise: so much judges models, and the rest tests them."""

TRACKERS = ("tensorboard", "mlflow", "wandb")

# Settings of where a run is computed and who follows it: no result depends on them.
NOT_RESULT_RELEVANT = ("data", "workers", "executor", "track")


@dataclass(frozen=True)
class ExperimentConfig:
    """Experiment settings."""

    dataset: str = "digits"
    """Name of the data set: digits is part of the library; any other is read from the folder --data. Or a Python file
    of your own that defines make_model and sites, or problem."""
    data: Path | None = None
    """Folder with the data set."""
    standardise: bool = False
    """Scale each channel to mean 0 and standard deviation 1 over the training set; on for mnist, cifar10, cifar100."""
    network: str = "auto"
    """mlp, small_cnn (the authors'), mcmahan_cnn or vgg11; auto: mlp for small images, otherwise small_cnn."""
    scenario: Annotated[ScenarioConfig, tyro.conf.arg(name="")] = field(default_factory=ScenarioConfig)
    training: Annotated[Sgd, tyro.conf.arg(name="")] = field(default_factory=lambda: Sgd(**DATASET_DEFAULTS["digits"]))
    privacy: Privacy = field(default_factory=Privacy)
    share: tuple[str, ...] = ()
    """Patterns over names of parameters, such as "head.*": what they match is shared, all else each client keeps."""
    keep: tuple[str, ...] = ()
    """Patterns of parameters that each client keeps for itself; by default all are shared."""
    rounds: int = 20
    """Communication rounds."""
    participation: float = 1.0
    """Fraction of the clients that take part in a round, sampled in each round."""
    client_dropout: float = 0.0
    """Probability that a participating client fails before it trains."""
    late_fraction: float = 0.0
    """Probability that a participating client trains, but uploads after the round has closed."""
    stop_after: int | None = None
    """Stop after so many rounds without a gain of the primary metric on validation data; the result is then that of the
    best round. By default all rounds are run."""
    evaluate_every: int = 1
    """Rounds between evaluations on the test data; the last round is always evaluated, and with stop_after every
    round."""
    workers: int | None = None
    """Worker processes; by default one per core; 0: compute in the main process. Does not change the result."""
    executor: Literal["processes", "ray"] = "processes"
    """Where workers run: processes on this machine, or a Ray cluster. Does not change the result."""
    device: str = "cpu"
    """PyTorch device: cpu, cuda, cuda:1, mps. On any but cpu, one process computes."""
    precision: Literal["float32", "bf16"] = "float32"
    """bf16: networks compute in bfloat16, by autocast, in training and in scoring; parameters, gradients, losses and
    mixing stay float32. Faster convolutions on a processor with avx512_bf16 or amx; refused on one without."""
    vectorise: bool = True
    """Train many small clients as one batch where that is faster; equal to separate training up to rounding."""
    track: tuple[str, ...] = ()
    """Trackers to log every round to, beside rounds.jsonl: tensorboard, mlflow, wandb."""

    def __post_init__(self) -> None:
        self.simulation()
        for tracker in self.track:
            if tracker not in TRACKERS:
                raise unknown("tracker", tracker, TRACKERS)
        is_open = not self.privacy.is_on or self.stop_after is None
        require(is_open, "--stop-after goes by exact scores on validation records, which are private: leave it out")
        is_alone = not self.privacy.is_on or self.scenario.share_fraction == 0
        require(is_alone, "with privacy, clients cannot share examples: leave out --share-fraction")
        is_exact = not self.privacy.is_on or self.precision == "float32"
        require(is_exact, "privacy clips gradients in float32: leave out --precision")
        is_possible = self.executor == "processes" or self.device.partition(":")[0] == "cpu"
        require(is_possible, f"a Ray cluster computes on cpu, not {self.device}: leave out --device or --executor")

    @property
    def is_own(self) -> bool:
        """Whether data and model are those of a user's own Python file."""
        return self.dataset.endswith(".py")

    def simulation(self, default_workers: int = 0) -> SimulationConfig:
        """Return how the rounds are run."""
        return SimulationConfig(
            rounds=self.rounds,
            participation=self.participation,
            evaluate_every=self.evaluate_every,
            workers=default_workers if self.workers is None else self.workers,
            vectorise=self.vectorise,
            executor=self.executor,
            client_dropout=self.client_dropout,
            late_fraction=self.late_fraction,
            stop_after=self.stop_after,
        )


@dataclass(frozen=True)
class RunConfig:
    """Run one method, and write its settings, log, models and scores to a folder.

    A TOML file of settings may come first, and flags override it: fedfomo run settings.toml --rounds 5. So may a Python
    file of your own that defines make_model and sites, or problem: fedfomo run my_problem.py --rounds 5. Options of a
    method are flags, such as --fedprox.mu 0.01, and listed by: fedfomo run --method fedprox --help.
    """

    method: str = "fedfomo"
    """A method of `fedfomo methods`, or one of your own: path/to/file.py:Class."""
    options: tyro.conf.Suppress[Mapping[str, Any]] = field(default_factory=dict[str, Any])
    seed: int = 0
    """Seed of all random draws: split of the data, initial model, cohorts, shuffling, exploration."""
    out: Path | None = None
    """Folder for the run; it must not exist yet. By default runs/ and the date and time."""
    setting: Annotated[ExperimentConfig, tyro.conf.arg(name="")] = field(default_factory=ExperimentConfig)


@dataclass(frozen=True)
class CompareConfig:
    """Run several methods on the same clients, with several seeds, and print one table.

    A TOML file of settings may come first, or a Python file of your own that defines make_model and sites: fedfomo
    compare my_problem.py --seeds 0 1. Local training is always run too, as each client's baseline. Options of a method
    are flags, such as --fedprox.mu 0.01, and listed by: fedfomo compare --methods fedprox --help.
    """

    methods: tuple[str, ...] = ("local", "fedavg", "fedavg-finetuned", "fedfomo")
    """Methods of `fedfomo methods`, or all; your own as path/to/file.py:Class. One method several times, each under a
    name of your own and with its options: fomo5=fedfomo:num_downloads=5 fomo10=fedfomo:num_downloads=10."""
    options: tyro.conf.Suppress[Mapping[str, Mapping[str, Any]]] = field(default_factory=dict[str, Any])
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; every method is run once with each."""
    out: Path | None = None
    """Folder for the runs; it must not exist yet. By default runs/ and the date and time."""
    setting: Annotated[ExperimentConfig, tyro.conf.arg(name="")] = field(default_factory=ExperimentConfig)

    def __post_init__(self) -> None:
        require(bool(self.methods), "give at least one method; `fedfomo methods` lists them")
        is_alone = "all" not in self.methods or len(self.methods) == 1
        require(is_alone, "all stands for every method that can run: leave out the others, or all")
        require(bool(self.seeds), "give at least one seed")
        require(len(set(self.seeds)) == len(self.seeds), "a seed is given twice: it would count one run as two")
