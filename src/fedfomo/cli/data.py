"""The commands about data: fetching sets, describing scenarios."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from fedfomo.cli.terminal import choose, console, parse, require_file, warn
from fedfomo.datasets.config import SCENARIOS, ScenarioConfig

MOST_WARNINGS = 10


@dataclass(frozen=True)
class ListConfig:
    """List the ways to spread a data set over clients."""


@dataclass(frozen=True)
class ShowConfig:
    """Show what every client of a scenario would hold, and how different the clients would be."""

    dataset: str = "digits"
    """The data set: digits ships with the library; any other is read from the folder given by --data."""
    data: Path | None = None
    """Folder that holds the data set."""
    scenario: Annotated[ScenarioConfig, tyro.conf.arg(name="")] = field(default_factory=ScenarioConfig)
    seed: int = 0
    """The seed of the run whose clients are shown."""
    json: Path | None = None
    """File to write everything to as well."""


@dataclass(frozen=True)
class GetConfig:
    """Download a public data set: mnist, cifar10 or cifar100."""

    name: Annotated[str, tyro.conf.Positional]
    """The data set."""
    folder: Path = Path("data")
    """Folder for its files; it may hold several sets."""


def scenarios(arguments: list[str]) -> None:
    """List the scenarios, or show one."""
    choose("scenarios", {"list": list_scenarios, "show": show}, arguments or ["list"])


def data(arguments: list[str]) -> None:
    """Fetch data sets."""
    choose("data", {"get": get}, arguments)


def list_scenarios(arguments: list[str]) -> None:
    """List the ways to spread data over clients; what happens without any word."""
    parse("scenarios list", ListConfig, arguments)
    for name, description in SCENARIOS.items():
        console.print(f"[bold]{name:<14}[/bold]{description}")
    console.print("\nAny of them with --shuffle-targets: clients are judged on the data of others;")
    console.print("or with --share-fraction 0.05: clients share a twentieth of their training data with everybody.")
    console.print("Who holds what: fedfomo scenarios show --scenario latent --clients 15")


def show(arguments: list[str]) -> None:
    """Show what every client of a scenario would hold."""
    config = parse("scenarios show", ShowConfig, arguments)
    require_file(config.json)
    from fedfomo.cli.scenario_table import draw_summary
    from fedfomo.datasets.readers import load_data
    from fedfomo.datasets.scenario_summary import summarise_scenario

    summary = summarise_scenario(config.scenario, load_data(config.dataset, config.data), config.seed)
    console.print(draw_summary(summary, console.width))
    for warning in summary.warnings[:MOST_WARNINGS]:
        warn(warning)
    if len(summary.warnings) > MOST_WARNINGS:
        warn(f"and {len(summary.warnings) - MOST_WARNINGS:,} notes of this kind")
    if config.json is not None:
        config.json.parent.mkdir(parents=True, exist_ok=True)
        config.json.write_text(json.dumps(summary.to_json(), indent=1) + "\n")
        console.print(f"written to {config.json}", soft_wrap=True)


def get(arguments: list[str]) -> None:
    """Download a public data set."""
    config = parse("data get", GetConfig, arguments)
    from fedfomo.cli.progress import DownloadBars
    from fedfomo.datasets.download import download

    with DownloadBars(console) as bars:
        download(config.name, config.folder, bars.report)
    console.print(f"{config.name} is in {config.folder}: use it with", soft_wrap=True)
    console.print(f"fedfomo run --dataset {config.name} --data {config.folder}", soft_wrap=True)
