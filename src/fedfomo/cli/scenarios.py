"""The command about scenarios: the ways to spread a data set over clients, and what every client would hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from fedfomo.cli.check import show_sites
from fedfomo.cli.tables import NONE, bars, labels_a_bar
from fedfomo.cli.terminal import choose, console, parse, require_file, warn_of, write_json
from fedfomo.core.local_training import Sgd
from fedfomo.datasets.config import SCENARIOS, ScenarioConfig

if TYPE_CHECKING:
    from fedfomo.datasets.scenario_summary import ClientSummary, ScenarioSummary

MOST_WARNINGS = 10
MOST_ROWS = 30  # clients; of more, their groups are shown, or the first few
ABRIDGED_TO = 10
_BESIDE_BARS = 60  # columns of the terminal


@dataclass(frozen=True)
class ListConfig:
    """List the ways to split a data set over clients."""


@dataclass(frozen=True)
class ShowConfig:
    """Show what each client would hold in a scenario, and how different the clients would be."""

    dataset: str = "digits"
    """Name of the data set: digits is part of the library; any other is read from the folder --data. Or a Python file
    of your own with sites: fedfomo scenarios show my_problem.py."""
    data: Path | None = None
    """Folder with the data set."""
    scenario: Annotated[ScenarioConfig, tyro.conf.arg(name="")] = field(default_factory=ScenarioConfig)
    seed: int = 0
    """The seed of the run whose clients are shown."""
    json: Path | None = None
    """JSON file to write all of it to as well."""


def scenarios(arguments: list[str]) -> None:
    """List the scenarios, or show one."""
    choose("scenarios", {"list": list_scenarios, "show": show}, arguments or ["list"])


def list_scenarios(arguments: list[str]) -> None:
    """List the ways to split data over clients; the default."""
    parse("scenarios list", ListConfig, arguments)
    for name, description in SCENARIOS.items():
        console.print(f"[bold]{name:<14}[/bold]{description}")
    console.print("\nAny of them with --shuffle-targets: clients are judged on the data of others;")
    console.print("or with --share-fraction 0.05: clients share a twentieth of their training data with everybody.")
    console.print("Who holds what: fedfomo scenarios show --scenario latent --clients 15")


def show(arguments: list[str]) -> None:
    """Show what each client would hold in a scenario."""
    if arguments and arguments[0].endswith(".py"):
        arguments = ["--dataset", *arguments]
    config = parse("scenarios show", ShowConfig, arguments)
    require_file(config.json)
    if config.dataset.endswith(".py"):
        _show_own(config)
        return
    from fedfomo.datasets.readers import load_data
    from fedfomo.datasets.scenario_summary import summarise_scenario

    summary = summarise_scenario(config.scenario, load_data(config.dataset, config.data), config.seed)
    console.print(draw_summary(summary, console.width))
    warn_of(summary.warnings, MOST_WARNINGS)
    write_json(config.json, asdict(summary))


def _show_own(config: ShowConfig) -> None:
    """Show what the sites of a user's own Python file hold."""
    from fedfomo.runs.config import ExperimentConfig
    from fedfomo.runs.own_problem import prepare_file
    from fedfomo.sites.checks import summarise_sites

    setting = ExperimentConfig(dataset=config.dataset, data=config.data, scenario=config.scenario, training=Sgd())
    prepared = prepare_file(setting, config.seed)
    cards = summarise_sites(prepared.environment["names"], prepared.problem.clients)
    show_sites(cards)
    warn_of(prepared.environment["warnings"], MOST_WARNINGS)
    write_json(config.json, [asdict(card) for card in cards])


@dataclass(frozen=True)
class _Row:
    """One line of the table: a client, or all clients of a group."""

    name: str
    group: int | None
    examples: tuple[str, str, str]
    train_labels: Sequence[int]
    target_labels: Sequence[int]


def draw_summary(summary: ScenarioSummary, width: int = 80) -> Group:
    """Draw a summary for a terminal of some width: the scenario's figures, then what every client holds."""
    most_bars = max((width - _BESIDE_BARS) // 2, 10)
    return Group(_title(summary), _figures(summary), _table(summary, most_bars), _caption(summary, most_bars))


def _title(summary: ScenarioSummary) -> Text:
    config = summary.config
    kind = config.scenario
    if config.has_groups:
        kind += f", {config.distributions} " + ("classes" if config.representation == "classes" else "distributions")
    return Text(f"{summary.dataset}, {kind}, {len(summary.clients):,} clients, seed {summary.seed}", style="bold")


def _figures(summary: ScenarioSummary) -> Table:
    figures = Table.grid(padding=(0, 2))
    examples = f"{summary.train:,} to train on, {summary.validation:,} to validate on, {summary.test:,} to test on"
    figures.add_row("examples", examples)
    if summary.shared:
        given = f"{100 * summary.config.share_fraction:g} % of each client's training examples"
        figures.add_row("shared", f"{summary.shared:,} that all clients train on, {given}")
    published = "" if summary.emd_published is None else f", the paper's {summary.emd_published:.2f}"
    figures.add_row(
        "label EMD", f"{summary.emd_l1:.2f} (Σ|p − q|), {summary.emd_official:.2f} as the authors count{published}"
    )
    overlaps = [client.overlap for client in summary.clients if client.overlap is not None]
    if summary.mean_overlap is not None:
        least = f"at least {100 * min(overlaps):.0f} %"
        figures.add_row(
            "overlap", f"{100 * summary.mean_overlap:.0f} % of the labels trained on and judged on, {least}"
        )
    informative = f"{summary.num_informative:,} of {len(summary.clients):,} clients"
    figures.add_row("informative", f"{informative}: a constant answer is wrong in more than 2 % of their tests")
    away = f"{100 * summary.share_out_of_distribution:.0f} % of the clients"
    figures.add_row("targets", f"{away} are judged on a distribution that is not theirs")
    return figures


def _table(summary: ScenarioSummary, most_bars: int) -> Table:
    from fedfomo.datasets.scenario_summary import overlap

    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    grouped = summary.clients[0].group is not None
    table.add_column("client", no_wrap=True)
    for heading in (*(["group"] if grouped else []), "train", "validation", "test"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading in ("trains on", "judged on"):
        table.add_column(heading, no_wrap=True)
    table.add_column("overlap", justify="right", no_wrap=True)
    for row in _rows(summary):
        common = overlap(row.train_labels, row.target_labels)
        table.add_row(
            row.name,
            *([str(row.group)] if grouped else []),
            *row.examples,
            bars(row.train_labels, most_bars),
            bars(row.target_labels, most_bars),
            "" if common is None else f"{100 * common:.0f} %",
        )
    return table


def _rows(summary: ScenarioSummary) -> list[_Row]:
    numbered = list(enumerate(summary.clients))
    if len(numbered) <= MOST_ROWS:
        return [_client_row(number, client) for number, client in numbered]
    by_group: dict[int, list[ClientSummary]] = {}
    for client in summary.clients:
        if client.group is not None:
            by_group.setdefault(client.group, []).append(client)
    if 0 < len(by_group) <= MOST_ROWS:
        return [_group_row(group, members) for group, members in sorted(by_group.items())]
    return [_client_row(number, client) for number, client in numbered[:ABRIDGED_TO]]


def _client_row(number: int, client: ClientSummary) -> _Row:
    return _Row(
        name=str(number) if client.target == number else f"{number} → {client.target}",
        group=client.group,
        examples=(f"{client.train:,}", f"{client.validation:,}", f"{client.test:,}"),
        train_labels=client.train_labels,
        target_labels=client.target_labels,
    )


def _group_row(group: int, members: Sequence[ClientSummary]) -> _Row:
    return _Row(
        name=f"{len(members):,} clients",
        group=group,
        examples=(
            _range([client.train for client in members]),
            _range([client.validation for client in members]),
            _range([client.test for client in members]),
        ),
        train_labels=_total([client.train_labels for client in members]),
        target_labels=_total([client.target_labels for client in members]),
    )


def _total(mixes: Sequence[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*mixes, strict=True)]


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _caption(summary: ScenarioSummary, most_bars: int) -> Text:
    together = labels_a_bar(summary.num_classes, most_bars)
    each = "a bar per label" if together == 1 else f"a bar per {together} labels"
    words = [f"Labels 0 to {summary.num_classes - 1}, {each}; a mix's highest bar is full, {NONE} stands for none."]
    if len(summary.clients) > MOST_ROWS:
        words.append("Every client is in the file that --json FILE writes.")
    elif any(client.target != number for number, client in enumerate(summary.clients)):
        words.append("0 → 1: client 0 is judged on the data of client 1.")
    return Text("\n".join(words), style="dim")
