"""What is compared on random-patch features: regimes, methods, and the order in which cells are computed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from experiments.iclr2021.settings import MANY_CLIENTS, ROUNDS, WITH_GROUPS
from fedfomo.algorithms.registry import find_algorithm
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.config_io import build

PAPERS_RATE = 0.1
TUNING_SEEDS = (100, 101)
"""Seeds on which settings are chosen, and which are reported nowhere."""
WORTH = 0.5
"""Points of validation accuracy: a further setting that is so much better than the grid's best is one more rival."""
BREADTH = 3
"""So many seeds of everything come before any further seed."""
CORE_SEEDS = 5
"""So many seeds of the core methods come before everything else."""
SEEDS = 10


Kind = Literal["groups", "foreign", "concept", "iid"]
"""Groups or skewed labels, foreign targets, groups that label differently, all clients alike."""
Grid = tuple[tuple[float, Mapping[str, Any]], ...]
"""Learning rates with options, among which validation chooses."""


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

    @property
    def kind(self) -> Kind:
        """What kind of federation it stands for."""
        if self.has_foreign_targets:
            return "foreign"
        scenario = self.scenario["scenario"]
        return scenario if scenario in ("concept", "iid") else "groups"

    @property
    def has_foreign_targets(self) -> bool:
        """Whether a client's validation and test data can differ in distribution from its training data."""
        return self.scenario["scenario"] == "ood" or self.scenario.get("shuffle_targets", False)


@dataclass(frozen=True)
class Contender:
    """A method with the settings among which validation chooses."""

    name: str
    label: str
    method: str
    grid: Grid = field(default=(), hash=False)
    further: Grid = field(default=(), hash=False)  # tried later; no choice among them
    given: tuple[float, Mapping[str, Any]] | None = field(default=None, hash=False)  # its setting, without a choice
    fixed: Mapping[str, Any] = field(default_factory=dict[str, Any], hash=False)
    tuned_as: str | None = None  # takes the choice of another contender
    for_foreign_targets: bool = False  # uses the target's data where its namesake does not

    def fits(self, regime: Regime) -> bool:
        """Tell whether it can run in a regime, and says something there."""
        if self.for_foreign_targets and not regime.has_foreign_targets:
            return False
        return regime.has_groups or not find_algorithm(self.method).needs_groups


@dataclass(frozen=True)
class FeatureCell:
    """One run."""

    regime: Regime
    contender: Contender
    seed: int


def _values(name: str, *values: Any) -> Grid:
    return tuple((PAPERS_RATE, {name: value}) for value in values)


RATES, MORE_RATES = (tuple((rate, {}) for rate in rates) for rates in ((0.03, PAPERS_RATE, 0.2), (0.02, 0.05)))
"""For methods without an option of their own."""
# The step that personalises is at most an eighth of the meta-step: see the method's page.
PER_FEDAVG = _values("alpha", *(PAPERS_RATE / part for part in (8, 16, 32)))
MORE_PER_FEDAVG: Grid = tuple((rate, {"alpha": rate / 8}) for rate in (0.05, 0.2))
BLENDS, MORE_BLENDS = (
    tuple((PAPERS_RATE, {"blended_layers": layers, "eta": eta}) for layers, eta in pairs)
    for pairs in (((1, 1.0), (2, 1.0), (1, 0.1)), ((2, 0.1), (2, 10.0)))
)
MORE_BODIES: Grid = ((PAPERS_RATE, {"body_epochs": 3}), (PAPERS_RATE, {"body_epochs": 4, "head_layers": 2}))


def _contender(name: str, label: str, grid: Grid, further: Grid, **fixed: Any) -> Contender:
    method = "fedfomo" if name == "fedfomo-5" else name
    return Contender(name, label, method, grid, further, fixed=fixed)


def _one_option(name: str, label: str, option: str, first: Sequence[Any], more: Sequence[Any]) -> Contender:
    return _contender(name, label, _values(option, *first), _values(option, *more))


CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        _contender("local", "Local Training", RATES, MORE_RATES),
        _contender("fedavg", "FedAvg", RATES, MORE_RATES),
        _contender("fedavg-finetuned", "FedAvg + fine-tuning", RATES, MORE_RATES),
        _contender(
            "fedfomo-5",
            "FedFomo (n = 5)",
            _values("epsilon", 0.3, 1.0, 0.0),
            _values("epsilon", 0.1, 0.6),
            num_downloads=5,
        ),
        _one_option("cfl", "Clustered FL (CFL)", "separation", (0.5, 0.25, 0.0), (0.125, 0.75)),
        _one_option("fedfomo-plus", "FedFomo+", "beta", (8.0, 16.0, 4.0), (2.0, 32.0)),
        _contender("oracle", "oracle clusters", RATES, MORE_RATES),
        _one_option("fedprox", "FedProx", "mu", (0.001, 0.01, 0.1), (0.0001, 1.0)),
        _contender("per-fedavg", "Per-FedAvg", PER_FEDAVG, MORE_PER_FEDAVG),
        _one_option("pfedme", "pFedMe", "eta", (0.5, 1.0, 0.25), (0.125, 0.0625)),
        _one_option("mocha", "MOCHA", "lambda_", (0.03, 0.1, 0.01), (0.3, 1.0)),
        _one_option("lg-fedavg", "LG-FedAvg", "warm_up", (0.5, 0.75, 0.25), (0.85, 0.95)),
        _contender("fedavg-shared", "FedAvg + Data", RATES, MORE_RATES),
        _one_option("ditto", "Ditto", "lambda_", (0.3, 1.0, 0.1), (0.2, 0.03)),
        _contender("fedrep", "FedRep", _values("body_epochs", 2, 4, 1), MORE_BODIES),
        _contender("fedala", "FedALA", BLENDS, MORE_BLENDS),
        _one_option("dpfl", "DPFL", "budget", (5, 10, 3), (7, 14)),
        _one_option("pfedgraph", "pFedGraph", "alpha", (0.2, 0.8, 2.0), (0.4, 1.2)),
        Contender("fedfomo-10", "FedFomo (n = 10)", "fedfomo", fixed={"num_downloads": 10}, tuned_as="fedfomo-5"),
        Contender("fedfomo-all", "FedFomo (n = all)", "fedfomo", fixed={"num_downloads": 99}, tuned_as="fedfomo-5"),
        Contender("fedavg-finetuned-0.05", "FedAvg + fine-tuning, rate 0.05", "fedavg-finetuned", given=(0.05, {})),
        Contender("per-fedavg-0.2", "Per-FedAvg, rate 0.2, α = 0.025", "per-fedavg", given=(0.2, {"alpha": 0.025})),
        Contender(
            "fedavg-tuned-on-validation",
            "FedAvg, fine-tuned on the target's validation data",
            "fedavg-tuned-on-validation",
            tuned_as="fedavg-finetuned",
            for_foreign_targets=True,
        ),
        Contender(
            "cfl-by-validation",
            "CFL, cluster chosen by validation data",
            "cfl",
            fixed={"select_by_validation": True},
            tuned_as="cfl",
            for_foreign_targets=True,
        ),
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
