"""What the paper compares: settings, methods, scales and seeds; one run is one cell of a table."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedfomo.algorithms.registry import find_algorithm
from fedfomo.core.device import Precision
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
DATA_WORDS = {"paper": "all", "lite": "a fifth"}
"""How much of the data a scale has, for tables."""
MANY_CLIENTS = 100
"""Clients of the paper's larger federations."""
ROUNDS: dict[int, tuple[int, float]] = {15: (20, 1.0), MANY_CLIENTS: (100, 0.1)}
"""From a number of clients to rounds and participation, as in the paper."""
WITH_GROUPS = ("latent", "ood", "pairs", "concept")
"""Scenarios whose clients are in groups."""
DELTA = 1e-5
"""δ of all private runs."""
DECISIVE = (
    *("method", "seed", "dataset", "scenario", "clients", "validation_fraction", "rounds", "participation"),
    *("epochs", "batch_size", "learning_rate", "augment"),
)
"""What every command names, usual or not."""


@dataclass(frozen=True)
class Setting:
    """What methods are compared on."""

    dataset: str
    scenario: str
    distributions: int | None = None  # D
    clients: int = 15  # K
    validation_fraction: float | None = None  # None: the default, a fifth
    noise: float | None = None  # σ of differentially private training; None: not private at all
    augment: bool | None = None  # training images are shifted and mirrored; None: where it is usual
    participation: float | None = None  # share of clients in a round; None: the paper's
    imagenet: bool = False  # latent groups as they ship now, of ImageNet features, and not the older ones
    alpha: float | None = None  # of Dirichlet's proportions
    precision: Precision = "float32"  # of the network's own operations
    shuffled: bool = False  # clients aim at each other's distributions; ood is latent with just that

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
        if self.imagenet:
            parts.append("imagenet")
        if self.shuffled:
            parts.append("shuffled")
        if self.precision != "float32":
            parts.append(self.precision)
        return "-".join(parts)

    @property
    def has_groups(self) -> bool:
        """Whether clients are in groups that the oracle knows."""
        return self.scenario in WITH_GROUPS

    @property
    def in_paper(self) -> str:
        """The name of what the paper has in its place: it has one kind of groups."""
        return replace(self, imagenet=False).name

    def at(self, scale: str) -> dict[str, Any]:
        """Return the values of the setting that this case is at a scale, as a configuration file would have them."""
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        rounds, usual = ROUNDS[self.clients]
        participation = usual if self.participation is None else self.participation
        values: dict[str, Any] = {"dataset": self.dataset, "scenario": self.scenario, "clients": self.clients}
        if self.distributions is not None:
            values["distributions"] = self.distributions
        if self.scenario in ("latent", "ood") and not self.imagenet:
            values["representation"] = "vgg"
        if self.alpha is not None:
            values["alpha"] = self.alpha
        if self.shuffled:
            values["shuffle_targets"] = True
        if self.precision != "float32":
            values["precision"] = self.precision
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
            values.pop("representation", None)
        return values


@dataclass(frozen=True)
class MethodConfig:
    """A method with its options, as a row of a table."""

    name: str
    label: str = field(compare=False)
    method: str
    options: tuple[str, ...] = ()  # {D} stands for the number of latent distributions of a case

    def fits(self, case: Setting) -> bool:
        """Tell whether it can run on a case."""
        return case.has_groups or not find_algorithm(self.method).needs_groups

    def options_on(self, case: Setting) -> tuple[str, ...]:
        """Return its options on a case."""
        return tuple(option.format(D=case.distributions) for option in self.options)


@dataclass(frozen=True)
class Cell:
    """One run: what, on what, how large, with which seed."""

    case: Setting
    variant: MethodConfig
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
    def is_informative(self) -> bool:
        """Whether it can say anything.

        Of 100 clients, each has a hundred steps of SGD in all if it has a fifth of its data: many are still at chance.
        """
        return self.scale != "lite" or self.case.clients < MANY_CLIENTS

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
        if self.case.alpha is not None:
            always.append("alpha")
        if self.case.noise is not None:
            always.append("privacy.delta")
        return " ".join(["fedfomo run", *to_cli(self.config(Path("FOLDER")), tuple(always))])


@dataclass(frozen=True)
class Target:
    """A table or a figure: what it shows, and the cells behind it."""

    name: str
    title: str
    runs: int  # that the paper averages over
    pairs: tuple[tuple[Setting, MethodConfig], ...] = field(repr=False)

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


@dataclass(frozen=True)
class Published:
    """A number as the paper prints it."""

    text: str

    @property
    def mean(self) -> float:
        """The number before the ±."""
        return float(self.text.partition(" ± ")[0])


def published(table: str, row: str, case: Setting, kind: str = "rows") -> Published | None:
    """Return what a table of the paper says, if it says something: an accuracy in %, or with "epsilon" a budget."""
    table = table.removesuffix("-imagenet")
    content = _numbers().get("table6" if table == "table4" else table)
    row = "mocha" if row == "mocha-repository" else row  # the paper ran that code, and calls it MOCHA
    if content is None or row not in content.get(kind, {}) or case.in_paper not in content["columns"]:
        return None
    return Published(content[kind][row][content["columns"].index(case.in_paper)])


@cache
def _numbers() -> dict[str, Any]:
    return tomllib.loads((files("experiments.iclr2021") / "paper.toml").read_text(encoding="utf-8"))
