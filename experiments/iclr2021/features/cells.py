"""What is compared on random-patch features: regimes, methods, and the order in which cells are computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.iclr2021.settings import MANY_CLIENTS, ROUNDS, WITH_GROUPS
from fedfomo.algorithms.registry import find_algorithm
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.config_io import build

PAPERS_RATE = 0.1
TUNING_SEEDS = (100, 101)
"""Seeds on which settings are chosen, and which are reported nowhere."""
BREADTH = 3
"""So many seeds of everything come before any further seed."""
CORE_SEEDS = 5
"""So many seeds of the core methods come before everything else."""
SEEDS = 10


Grid = tuple[tuple[float, Mapping[str, Any]], ...]
"""Learning rates with options, among which validation chooses: three for every method."""


@dataclass(frozen=True)
class Regime:
    """Who holds what."""

    name: str
    label: str
    scenario: Mapping[str, Any] = field(hash=False)
    clients: int = 15
    dataset: str = "cifar10-features"

    def config(self, data: Path, learning_rate: float) -> ExperimentConfig:
        """Return the setting of a run; 15 clients have a fifth of their data, as at the lite scale, 100 have all."""
        rounds, participation = ROUNDS[self.clients]
        values = {
            "dataset": self.dataset,
            "data": str(data),
            "standardise": True,
            "clients": self.clients,
            "rounds": rounds,
            "participation": participation,
            "data_fraction": 1.0 if self.clients == MANY_CLIENTS else 0.2,
            "learning_rate": learning_rate,
            "batch_size": 50,
            "evaluate_every": 2,
            "workers": 0,
        }
        return build(ExperimentConfig, values | dict(self.scenario))

    @property
    def has_groups(self) -> bool:
        """Whether clients are in groups that the oracle knows."""
        return self.scenario["scenario"] in WITH_GROUPS


@dataclass(frozen=True)
class Contender:
    """A method with the settings among which validation chooses."""

    name: str
    label: str
    method: str
    grid: Grid = field(hash=False)
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    tuned_as: str | None = None  # takes the choice of another contender

    def fits(self, regime: Regime) -> bool:
        """Tell whether it can run in a regime."""
        return regime.has_groups or not find_algorithm(self.method).needs_groups


@dataclass(frozen=True)
class FeatureCell:
    """One run."""

    regime: Regime
    contender: Contender
    seed: int


def _values(name: str, *values: Any) -> Grid:
    return tuple((PAPERS_RATE, {name: value}) for value in values)


RATES: Grid = tuple((rate, {}) for rate in (0.03, PAPERS_RATE, 0.2))
"""For methods without an option of their own."""
# The step that personalises is at most an eighth of the meta-step: see the method's page.
PER_FEDAVG = _values("alpha", *(PAPERS_RATE / part for part in (8, 16, 32)))
BLENDS = tuple((PAPERS_RATE, {"blended_layers": layers, "eta": eta}) for layers, eta in ((1, 1.0), (2, 1.0), (1, 0.1)))

CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        Contender("local", "Local Training", "local", RATES),
        Contender("fedavg", "FedAvg", "fedavg", RATES),
        Contender("fedavg-finetuned", "FedAvg + fine-tuning", "fedavg-finetuned", RATES),
        Contender("fedfomo-5", "FedFomo (n = 5)", "fedfomo", _values("epsilon", 0.3, 1.0, 0.0), {"num_downloads": 5}),
        Contender("cfl", "Clustered FL (CFL)", "cfl", _values("separation", 0.5, 0.25, 0.0)),
        Contender("fedfomo-plus", "FedFomo+", "fedfomo-plus", _values("beta", 8.0, 16.0, 4.0)),
        Contender("oracle", "oracle clusters", "oracle", RATES),
        Contender("fedprox", "FedProx", "fedprox", _values("mu", 0.001, 0.01, 0.1)),
        Contender("per-fedavg", "Per-FedAvg", "per-fedavg", PER_FEDAVG),
        Contender("pfedme", "pFedMe", "pfedme", _values("eta", 0.5, 1.0, 0.25)),
        Contender("mocha", "MOCHA", "mocha", _values("lambda_", 0.03, 0.1, 0.01)),
        Contender("lg-fedavg", "LG-FedAvg", "lg-fedavg", _values("warm_up", 0.5, 0.75, 0.25)),
        Contender("fedavg-shared", "FedAvg + Data", "fedavg-shared", RATES),
        Contender("ditto", "Ditto", "ditto", _values("lambda_", 0.3, 1.0, 0.1)),
        Contender("fedrep", "FedRep", "fedrep", _values("body_epochs", 2, 4, 1)),
        Contender("fedala", "FedALA", "fedala", BLENDS),
        Contender("dpfl", "DPFL", "dpfl", _values("budget", 5, 10, 3)),
        Contender("pfedgraph", "pFedGraph", "pfedgraph", _values("alpha", 0.2, 0.8, 2.0)),
        Contender("fedfomo-10", "FedFomo (n = 10)", "fedfomo", (), {"num_downloads": 10}, tuned_as="fedfomo-5"),
        Contender("fedfomo-all", "FedFomo (n = all)", "fedfomo", (), {"num_downloads": 99}, tuned_as="fedfomo-5"),
    )
}


def _latent(number: int, dataset: str = "cifar10") -> Regime:
    label = f"{NAMES[dataset]}, latent distributions, D = {number}"
    features = f"{dataset}-features"
    return Regime(
        f"{dataset}-latent-d{number}", label, {"scenario": "latent", "distributions": number}, dataset=features
    )


def _concept(number: int) -> Regime:
    words = {2: "two", 3: "three"}[number]
    label = f"CIFAR-10, labels permuted by {words} groups"
    return Regime(f"cifar10-concept-d{number}", label, {"scenario": "concept", "distributions": number})


NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
FOREIGN_PAIRS = {"scenario": "pairs", "distributions": 5, "shuffle_targets": True}


def _others(dataset: str) -> dict[str, Regime]:
    name, features = NAMES[dataset], f"{dataset}-features"
    two = "two" if dataset == "cifar10" else "twenty"
    return {
        "ood": Regime(
            f"{dataset}-ood-d5",
            f"{name}, foreign targets, D = 5",
            {"scenario": "ood", "distributions": 5},
            dataset=features,
        ),
        "dirichlet": Regime(
            f"{dataset}-dirichlet", f"{name}, Dirichlet(0.1)", {"scenario": "dirichlet", "alpha": 0.1}, dataset=features
        ),
        "pathological": Regime(
            f"{dataset}-pathological-k15", f"{name}, {two} classes", {"scenario": "pathological"}, dataset=features
        ),
        "iid": Regime(f"{dataset}-iid", f"{name}, IID", {"scenario": "iid"}, dataset=features),
        "pairs": Regime(
            f"{dataset}-pairs", f"{name}, class pairs", {"scenario": "pairs", "distributions": 5}, dataset=features
        ),
        "pairs-ood": Regime(
            f"{dataset}-pairs-ood", f"{name}, class pairs, foreign targets", FOREIGN_PAIRS, dataset=features
        ),
        "many": Regime(
            f"{dataset}-pathological-k100",
            f"{name}, {two} classes, 100 clients",
            {"scenario": "pathological"},
            clients=MANY_CLIENTS,
            dataset=features,
        ),
    }


def _regimes() -> Iterator[Regime]:
    """Yield the regimes in the order in which they are computed."""
    for dataset in NAMES:
        others = _others(dataset)
        yield _latent(5, dataset)
        yield others["ood"]
        yield _latent(2, dataset)
        yield from (others[name] for name in ("dirichlet", "pathological", "iid", "pairs", "pairs-ood"))
        yield from (_latent(number, dataset) for number in (3, 10, 4))
        yield others["many"]
        if dataset == "cifar10":
            yield from map(_concept, (2, 3))


REGIMES: dict[str, Regime] = {regime.name: regime for regime in _regimes()}
TUNING_REGIMES = (REGIMES["cifar10-latent-d5"],)
"""Where settings are chosen."""


CORE = ("local", "fedavg", "fedavg-finetuned", "fedfomo-5", "cfl", "fedfomo-plus", "pfedme", "mocha", "ditto")
"""Methods that decide most, computed first."""
FIRST = ("latent-d5", "ood-d5", "latent-d2", "dirichlet", "pathological-k15", "iid", "pairs", "pairs-ood")
"""Regimes of CIFAR-10 that are computed first."""


def queue() -> list[FeatureCell]:
    """Return all cells, each once: core methods where most is decided, three seeds of everything, the other seeds."""
    first = [f"cifar10-{name}" for name in FIRST]
    everywhere = [[name for name in REGIMES if name.startswith(f"{dataset}-")] for dataset in NAMES]
    turns: list[tuple[list[str], Sequence[str], range]] = [
        (first, CORE, range(BREADTH)),
        (first, CORE, range(BREADTH, CORE_SEEDS)),
        *((regimes, tuple(CONTENDERS), range(BREADTH)) for regimes in everywhere),
        *((regimes, tuple(CONTENDERS), range(SEEDS)) for regimes in everywhere),
    ]
    cells = [
        FeatureCell(REGIMES[regime], CONTENDERS[name], seed)
        for regimes, names, seeds in turns
        for regime in regimes
        for seed in seeds
        for name in names
        if CONTENDERS[name].fits(REGIMES[regime])
    ]
    return list(dict.fromkeys(cells))
