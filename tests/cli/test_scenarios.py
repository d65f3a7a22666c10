"""The scenario summary fits a terminal, whatever the number of clients and classes."""

import io

import pytest
import torch
from rich.console import Console

from fedfomo.cli.scenarios import draw_summary
from fedfomo.cli.tables import bars, labels_a_bar
from fedfomo.core.data import Examples
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.scenario_summary import ScenarioSummary, summarise_scenario


def draw(summary: ScenarioSummary, width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(draw_summary(summary, width))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def card_of(num_classes: int, size: int = 4000, **settings: object) -> ScenarioSummary:
    examples = Examples(torch.zeros(size, 1), torch.arange(size) % num_classes)
    data = DataSet("made-up", examples, examples, num_classes, "")
    config = ScenarioConfig(**settings)  # pyright: ignore[reportArgumentType]
    return summarise_scenario(config, data, seed=0)


@pytest.mark.parametrize(
    ("counts", "most_bars", "drawn"),
    [
        ([8, 4, 0, 1], 10, "█▄·▁"),
        ([1000, 1], 10, "█▁"),
        ([0, 0, 0], 10, "···"),
        ([5], 10, "█"),
        ([1, 1, 0, 0, 1], 3, "█·▄"),
    ],
)
def test_bars_by_hand(counts: list[int], most_bars: int, drawn: str) -> None:
    assert bars(counts, most_bars) == drawn


def test_neighbouring_labels_share_a_bar_where_there_are_many() -> None:
    assert [labels_a_bar(number, 10) for number in (1, 10, 11, 20, 100)] == [1, 1, 2, 2, 10]


@pytest.mark.parametrize("num_classes", [2, 10, 100])
@pytest.mark.parametrize("clients", [1, 15, 100, 1000])
@pytest.mark.parametrize("scenario", ["iid", "pathological", "classes"])
def test_a_summary_fits_the_terminal(num_classes: int, clients: int, scenario: str) -> None:
    latent = {"scenario": "ood", "representation": "classes", "distributions": num_classes}
    settings = latent if scenario == "classes" else {"scenario": scenario, "share_fraction": 0.1}
    lines = draw(card_of(num_classes, clients=clients, **settings))
    assert len(lines) <= 45
    assert not any("…" in line for line in lines), "nothing is cut off"
    assert all(len(line) <= 80 for line in lines)


def test_a_wide_terminal_shows_more_bars() -> None:
    summary = card_of(100, scenario="iid", clients=3)
    assert any("a bar per 10 labels" in line for line in draw(summary, 80))
    assert any("a bar per label" in line for line in draw(summary, 260))


def test_many_clients_are_shown_by_group_or_abridged() -> None:
    grouped = draw(card_of(10, clients=100, representation="classes", distributions=10))
    assert sum("10 clients" in line for line in grouped) == 10
    plain = draw(card_of(10, clients=100, scenario="iid"))
    assert sum(line.strip()[:1].isdigit() for line in plain) == 10
    for lines in (grouped, plain):
        assert any("--json FILE" in line for line in lines)


def test_who_is_judged_on_whose_data_is_told() -> None:
    summary = card_of(2, clients=4, scenario="iid", shuffle_targets=True)
    lines = draw(summary)
    for number, client in enumerate(summary.clients):
        expected = str(number) if client.target == number else f"{number} → {client.target}"
        assert any(line.strip().startswith(f"{expected} ") for line in lines)
