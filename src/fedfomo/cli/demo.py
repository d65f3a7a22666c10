"""The command that shows, within a minute, what personalised federated learning is for."""

from __future__ import annotations

import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from fedfomo.cli.compare import start_comparison
from fedfomo.cli.report import report
from fedfomo.cli.run import folder_for
from fedfomo.cli.tables import shade
from fedfomo.cli.terminal import console, parse
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.runs.config import CompareConfig, ExperimentConfig

if TYPE_CHECKING:
    from torch import nn

    from fedfomo.datasets.post_offices import PostOffice
    from fedfomo.sites.result import FederationResult

ROUNDS = 20
BASELINES = ("fedavg", "fedavg-finetuned")
NAMES = {
    "local": "every office alone",
    "fedavg": "one model for all (FedAvg)",
    "fedavg-finetuned": "FedAvg, then fine-tuned at each office",
    "fedfomo": "FedFomo",
}
LEAST_NAMED = 0.1  # share of a giver whom the sentence names
LEAST_DRAWN = 0.02


@dataclass(frozen=True)
class DemoConfig:
    """Six post offices learn to read digits. Each trains on its own images, and no image is shared.

    Scanners turn images: upright, sideways or upside down. Three offices have a new scanner, and labelled images of
    the old one only. Every method is run once with each seed, on the same images and from the same initial model.
    Settings were not tuned: they are the library's defaults, with batches of 20 images since each office has only 80.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds; every method is run once with each."""
    out: Path | None = None
    """Folder for the runs; it must not exist yet. By default runs/ and the date and time."""
    open: bool = False
    """Open the report in the browser."""
    scenario: str | None = None
    """Compare on the digits as this scenario splits them, for instance latent, instead of the post offices."""


def demo(arguments: list[str]) -> None:
    """Compare methods on the embedded data set and show who learned from whom."""
    config = parse("demo", DemoConfig, arguments)
    page = _post_offices(config) if config.scenario is None else _scenario(config, config.scenario)
    if config.open:
        webbrowser.open(page.resolve().as_uri())


def _scenario(config: DemoConfig, name: str) -> Path:
    setting = ExperimentConfig(scenario=ScenarioConfig(name))
    methods = ("local", *BASELINES, "fedfomo")
    folder = start_comparison(CompareConfig(methods, setting=setting, seeds=config.seeds, out=config.out), "demo")
    report([str(folder)])
    return folder / "report.html"


def _post_offices(config: DemoConfig) -> Path:
    from fedfomo.core.local_training import Sgd
    from fedfomo.datasets.post_offices import OFFICES, TARGET, TRAIN, post_office_sites
    from fedfomo.sites.federate import federate

    console.print(
        f"{len(OFFICES)} post offices learn to read handwritten digits. Scanners turn images: upright, sideways or"
        f" upside down.\nThree offices have a new scanner: they train on one kind of image and have to read another."
        f"\nEach office has {TRAIN} labelled images to train on, {round(TARGET / 4)} of the kind that it reads to"
        f" choose models by,\nand {TARGET - round(TARGET / 4)} to test them. Offices exchange models, not images.\n",
        soft_wrap=True,
    )
    with folder_for(config.out, "demo") as folder:
        result = federate(
            _make_model,
            post_office_sites(),
            method="fedfomo",
            rounds=ROUNDS,
            trainer=Sgd(batch_size=20),
            validation_fraction=1 / 4,
            baselines=BASELINES,
            seeds=config.seeds,
            out=folder,
            progress=True,
        )
    accuracies = _accuracies(folder, result.sites, config.seeds)
    console.print(_table(accuracies))
    runs = [result, *result.further_seeds.values()]
    taken = _taken(runs)
    console.print("\nWho learned from whom: each row is an office and what it reads; darker is more")
    console.print(_map(taken, OFFICES))
    for office in result.sites:
        console.print(_sentence(office, accuracies, taken[office]), soft_wrap=True)
    page = result.report(folder / "report.html")
    console.print(f"\nThe runs are in {folder}\nOpen the report in a browser: {page}", soft_wrap=True)
    return page


def _make_model() -> nn.Module:
    from fedfomo.core.networks import mlp

    return mlp((1, 8, 8), 10)


Accuracies = Mapping[str, Mapping[str, Sequence[float]]]
"""In per cent after the last federated update: by method, by office, one for each seed."""


def _accuracies(folder: Path, offices: Sequence[str], seeds: Sequence[int]) -> Accuracies:
    from fedfomo.runs.run import read_record

    records = {m: [read_record(folder / f"{m}-seed-{seed}").figures() for seed in seeds] for m in NAMES}
    return {
        method: {office: [100 * run[client] for run in runs] for client, office in enumerate(offices)}
        for method, runs in records.items()
    }


def _table(accuracies: Accuracies) -> Table:
    """Show methods as rows: the mean over offices with its deviation over seeds, and the worst office."""
    table = Table(title="Digits read correctly, in %", title_justify="left", box=SIMPLE_HEAD, show_edge=False)
    for heading in ("", "mean of offices", "worst office"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for method, by_office in accuracies.items():
        means = [fmean(values) for values in zip(*by_office.values(), strict=True)]
        spread = f" ± {stdev(means):.1f}" if len(means) > 1 else ""
        worst = min(fmean(values) for values in by_office.values())
        cells = f"{fmean(means):.1f}{spread}", f"{worst:.1f}"
        table.add_row(NAMES[method], *cells, style="bold" if method == "fedfomo" else None)
    return table


def _taken(runs: Sequence[FederationResult]) -> dict[str, dict[str, float]]:
    """Return, by receiver, each giver's share in what was taken from others, as a mean over seeds."""
    taken: dict[str, dict[str, float]] = {}
    for office in runs[0].sites:
        shares = [run.contributors(office) for run in runs]
        taken[office] = {giver: fmean(s.get(giver, 0.0) for s in shares) for giver in runs[0].sites}
    return taken


def _map(taken: Mapping[str, Mapping[str, float]], offices: Sequence[PostOffice]) -> Text:
    labels = {office.name: f"{office.name}, {office.reads}" for office in offices}
    left, width = max(map(len, labels.values())), max(map(len, taken)) + 1
    drawing = Text(" " * left + "".join(f"{giver:>{width}}" for giver in taken) + "\n", style="dim")
    for receiver, row in taken.items():
        drawing.append(f"{labels[receiver]:{left}}", style="bold")
        for giver in taken:
            share = row[giver] if row[giver] >= LEAST_DRAWN else 0.0
            block, style = ("· ", "dim") if giver == receiver else shade(share)
            drawing.append(f"{block:>{width}}", style=style)
        drawing.append("\n")
    return drawing


def _sentence(office: str, accuracies: Accuracies, taken: Mapping[str, float]) -> str:
    """Say what federating brought an office: means over seeds."""
    alone, federated = (fmean(accuracies[method][office]) for method in ("local", "fedfomo"))
    givers = sorted((giver for giver in taken if taken[giver] >= LEAST_NAMED), key=lambda giver: -taken[giver])
    *first, last = givers or [""]
    source = f"; learned from {', '.join(first)}{' and ' if first else ''}{last}" if givers else ""
    return f"{office}: {alone:.0f} % alone, {federated:.0f} % federated{source}."
