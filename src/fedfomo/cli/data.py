"""The commands about data: fetching sets, building latent distributions, describing scenarios."""

from __future__ import annotations

import json
import sys
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
    scenario: ScenarioConfig = field(default_factory=ScenarioConfig)
    seed: int = 0
    """The seed of the run whose clients are shown."""
    json: Path | None = None
    """File to write everything to as well."""


@dataclass(frozen=True)
class BuildConfig:
    """Make a data set's latent distributions as in the paper, and keep them: every run finds them there.

    VGG-11 is trained on the set, every image is represented by its second fully connected layer, and the
    representations are clustered. It takes hours; what was interrupted goes on where it stopped.
    """

    dataset: str
    """The data set's name."""
    data: Path
    """Folder that holds the data set."""
    work: Path | None = None
    """Folder for the training's checkpoint and the representations; by default one in the cache."""
    out: Path | None = None
    """File for the groups; by default one in the cache, where runs look for it."""
    distributions: tuple[int, ...] = (2, 3, 4, 5, 10)
    """Numbers of groups (D) to make; they replace those made before."""


@dataclass(frozen=True)
class TableConfig:
    """Print a Markdown table of how different clients' labels are in latent distributions, beside the paper's."""

    dataset: str
    """The data set's name."""
    data: Path | None = None
    """Folder that holds the data set."""
    clients: int = 15
    """Number of clients (K)."""
    seed: int = 0
    """Deals the groups out to clients."""


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


def latent(arguments: list[str]) -> None:
    """Make latent distributions, or measure them."""
    choose("latent", {"build": build, "table": table}, arguments)


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
    from fedfomo.cli.scenario_table import draw_card
    from fedfomo.datasets.readers import load_data
    from fedfomo.datasets.scenario_summary import make_card

    card = make_card(config.scenario, load_data(config.dataset, config.data), config.seed)
    console.print(draw_card(card, console.width))
    for warning in card.warnings[:MOST_WARNINGS]:
        warn(warning)
    if len(card.warnings) > MOST_WARNINGS:
        warn(f"and {len(card.warnings) - MOST_WARNINGS:,} notes of this kind")
    if config.json is not None:
        config.json.parent.mkdir(parents=True, exist_ok=True)
        config.json.write_text(json.dumps(card.to_json(), indent=1) + "\n")
        console.print(f"written to {config.json}", soft_wrap=True)


def build(arguments: list[str]) -> None:
    """Train VGG-11 on a data set and group its images by what the network sees in them."""
    config = parse("latent build", BuildConfig, arguments)
    require_file(config.out)
    from fedfomo.cli.progress import TrainingBar
    from fedfomo.datasets.cache import cache_folder
    from fedfomo.datasets.embedding import schedule_for
    from fedfomo.datasets.latent_groups import build_groups, own_file, write_groups
    from fedfomo.datasets.readers import read_folder

    images = read_folder(config.data, config.dataset)
    work = config.work or cache_folder() / "embeddings" / images.fingerprint[:16]
    file = config.out or own_file(images)
    console.print(f"{images.name}: training VGG-11 in {work}", soft_wrap=True)
    try:
        with TrainingBar(console) as bar:
            built = build_groups(images, work, schedule_for(images), config.distributions, bar.report, console.print)
    except KeyboardInterrupt:
        console.print("the same command goes on from the last checkpoint, at most a few minutes back")
        raise
    write_groups(built, file)
    console.print(f"written to {file}", soft_wrap=True)


def table(arguments: list[str]) -> None:
    """Print the label distances of latent distributions beside the paper's, as Markdown."""
    config = parse("latent table", TableConfig, arguments)
    from fedfomo.datasets.readers import load_data
    from fedfomo.datasets.scenario_summary import distance_table

    sys.stdout.write(distance_table(load_data(config.dataset, config.data), config.clients, config.seed) + "\n")


def get(arguments: list[str]) -> None:
    """Download a public data set."""
    config = parse("data get", GetConfig, arguments)
    from fedfomo.cli.progress import DownloadBars
    from fedfomo.datasets.download import download

    with DownloadBars(console) as bars:
        download(config.name, config.folder, bars.report)
    console.print(f"{config.name} is in {config.folder}: use it with", soft_wrap=True)
    console.print(f"fedfomo run --dataset {config.name} --data {config.folder}", soft_wrap=True)
