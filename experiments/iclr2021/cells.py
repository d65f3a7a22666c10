"""The paper's protocol: a case to compare methods on, a variant of a method, a scale, a seed; one run is one cell."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedfomo.errors import unknown
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config import ExperimentConfig, RunConfig
from fedfomo.runs.config_io import build, parse_options, to_cli

SCALES: dict[str, str] = {
    "smoke": "seconds: handwritten digits, two rounds of one epoch; shows that everything runs, and nothing else",
    "lite": "minutes a cell: a fifth of each client's data, with the paper's rounds and epochs",
    "paper": "the full protocol",
}
SHOWN = ("paper", "lite")
"""Scales that pages and figures show: a smoke run says nothing about the paper."""
AMOUNTS = {"paper": "all", "lite": "a fifth"}
"""How much of the data a scale has, for tables."""
CROWD = 100
"""Clients of the paper's larger federations."""
ROUNDS: dict[int, tuple[int, float]] = {15: (20, 1.0), CROWD: (100, 0.1)}
"""From a number of clients to rounds and participation, as in the paper."""
DELTA = 1e-5
"""δ of all private runs."""
DECISIVE = (
    *("method", "seed", "dataset", "scenario", "clients", "validation_fraction", "rounds", "participation"),
    *("epochs", "batch_size", "learning_rate", "augment"),
)
"""What every command names, usual or not."""
IMAGES = {"digits": 1437, "mnist": 60_000, "cifar10": 50_000, "cifar100": 50_000}
"""Training images of a data set, for forecasts."""
PRIVATE_WORK = 1.8
"""What a private step takes, in plain ones, as `make bench` measures it; for forecasts."""


@dataclass(frozen=True)
class Case:
    """What methods are compared on."""

    dataset: str
    scenario: str
    distributions: int | None = None  # D
    clients: int = 15  # K
    validation_fraction: float | None = None  # None: the default, a fifth
    noise: float | None = None  # σ of differentially private training; None: not private at all
    augment: bool | None = None  # training images are shifted and mirrored; None: where it is usual
    participation: float | None = None  # share of clients in a round; None: the paper's

    @property
    def name(self) -> str:
        """A name for files: every value that tells this case from others."""
        parts = [self.dataset, self.scenario]
        if self.distributions is not None:
            parts.append(f"d{self.distributions}")
        parts.append(f"k{self.clients}")
        if self.validation_fraction is not None:
            parts.append(f"validation-{self.validation_fraction:g}")
        if self.noise is not None:
            parts.append(f"noise-{self.noise:g}")
        if self.augment is not None:
            parts.append("augmented" if self.augment else "plain")
        if self.participation is not None:
            parts.append(f"participation-{self.participation:g}")
        return "-".join(parts)

    def at(self, scale: str) -> dict[str, Any]:
        """Return the values of the setting that this case is at a scale, as a configuration file would have them."""
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        rounds, usual = ROUNDS[self.clients]
        participation = usual if self.participation is None else self.participation
        values: dict[str, Any] = {"dataset": self.dataset, "scenario": self.scenario, "clients": self.clients}
        if self.distributions is not None:
            values["distributions"] = self.distributions
        values |= {"rounds": rounds, "participation": participation}
        if self.validation_fraction is not None:
            values["validation_fraction"] = self.validation_fraction
        if self.augment is not None:
            values["augment"] = self.augment
        if scale == "lite":
            # Scoring on all test data after each of a few hundred steps would take a sixth of the time.
            values |= {"data_fraction": 0.2, "evaluate_every": 4}
        if scale == "smoke":
            values |= {"dataset": "digits", "clients": min(self.clients, 30), "rounds": 2, "epochs": 1}
        return values


@dataclass(frozen=True)
class Variant:
    """A method with its options, as a row of a table."""

    name: str
    label: str
    method: str
    options: tuple[str, ...] = ()  # {D} stands for the number of latent distributions of a case
    work: float = 1.0  # gradients that it computes, where local training computes 1; for forecasts

    def options_on(self, case: Case) -> tuple[str, ...]:
        """Return its options on a case."""
        return tuple(option.format(D=case.distributions) for option in self.options)

    def work_among(self, clients: int) -> float:
        """Return the gradients that it computes among so many clients; a shared pool grows with their number."""
        return self.work if self.method != "fedavg-shared" else 1 + 0.05 * (clients - 1)


@dataclass(frozen=True)
class Cell:
    """One run: what, on what, how large, with which seed."""

    case: Case
    variant: Variant
    scale: str
    seed: int = 0

    @property
    def name(self) -> str:
        """The cell's place among results, without an ending."""
        return f"{self.scale}/{self.case.name}/{self.variant.name}-seed-{self.seed}"

    @property
    def file(self) -> Path:
        """The file of its result, within the folder of results."""
        return Path(f"{self.name}.json")

    @property
    def is_telling(self) -> bool:
        """Whether it can say anything.

        Of 100 clients, each has a hundred steps of SGD in all if it has a fifth of its data: many are still at chance.
        """
        return self.scale != "lite" or self.case.clients < CROWD

    def config(self, data: Path | None = None, workers: int | None = None) -> RunConfig:
        """Return the run that this cell is."""
        setting = build(ExperimentConfig, self.case.at(self.scale))
        if self.case.noise is not None:
            setting = replace(setting, privacy=Privacy(noise=self.case.noise, delta=DELTA))
        needs_data = setting.dataset != "digits"
        setting = replace(setting, data=data if needs_data else None, workers=workers)
        options = parse_options(self.variant.options_on(self.case))
        return RunConfig(self.variant.method, options, self.seed, None, setting)

    def command(self) -> str:
        """Spell out the command that computes the same run by itself, whatever a later version has for defaults."""
        always = list(DECISIVE)
        if self.case.distributions is not None:
            always.append("distributions")
        if self.case.noise is not None:
            always.append("privacy.delta")
        return " ".join(["fedfomo run", *to_cli(self.config(Path("FOLDER")), tuple(always))])

    def gradients(self) -> float:
        """Estimate how many examples the run differentiates, or how many would take as long."""
        setting = build(ExperimentConfig, self.case.at(self.scale))
        scenario = setting.scenario
        examples = IMAGES[setting.dataset] * scenario.data_fraction * (1 - scenario.validation_fraction)
        work = self.variant.work_among(scenario.clients) * (1.0 if self.case.noise is None else PRIVATE_WORK)
        return setting.rounds * setting.participation * setting.training.epochs * examples * work


@dataclass(frozen=True)
class Target:
    """A table or a figure: what it shows, and the cells behind it."""

    name: str
    title: str
    runs: int  # that the paper averages over
    pairs: tuple[tuple[Case, Variant], ...] = field(repr=False)

    def cells(self, scale: str, seeds: range | tuple[int, ...] = (0,)) -> list[Cell]:
        """Return its cells; those that start from the same clients follow each other."""
        cases = dict.fromkeys(case for case, _ in self.pairs)
        return [
            Cell(case, variant, scale, seed)
            for case in cases
            for seed in seeds
            for other, variant in self.pairs
            if other == case
        ]
