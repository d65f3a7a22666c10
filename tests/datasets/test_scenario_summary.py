"""A summary says what clients hold, as a run would deal it."""

import json
from dataclasses import asdict

import pytest
import torch

from fedfomo.core.data import Examples
from fedfomo.datasets.bundled import DataSet, load_digits
from fedfomo.datasets.config import SCENARIOS, ScenarioConfig
from fedfomo.datasets.scenario_summary import PUBLISHED_EMD, overlap, summarise_scenario
from fedfomo.datasets.scenarios import build_scenario


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load_digits()


def named(name: str) -> DataSet:
    """Return a set with ten classes under a published set's name."""
    labels = torch.arange(400) % 10
    examples = Examples(torch.zeros(400, 1, 2, 2), labels)
    return DataSet(name, examples, examples, 10, "")


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_summary_tells_what_a_run_would_use(name: str, digits: DataSet) -> None:
    config = ScenarioConfig(scenario=name, share_fraction=0.1 if name == "ood" else 0.0)
    summary, scenario = summarise_scenario(config, digits, seed=3), build_scenario(config, digits, seed=3)
    assert (summary.emd_l1, summary.emd_official) == (scenario.emd_l1, scenario.emd_official)
    assert summary.share_out_of_distribution == scenario.partition.share_out_of_distribution
    assert summary.shared == len(scenario.partition.pool)
    assert summary.train + summary.validation == len(digits.train)
    assert summary.test == len(digits.test)
    for number, (shown, client) in enumerate(zip(summary.clients, scenario.clients, strict=True)):
        assert (shown.train, shown.validation, shown.test) == (
            len(client.train),
            len(client.validation),
            len(client.test),
        )
        assert shown.train_labels == tuple(torch.bincount(client.train.labels, minlength=10).tolist())
        targets = torch.cat([client.validation.labels, client.test.labels])
        assert shown.target_labels == tuple(torch.bincount(targets, minlength=10).tolist())
        assert shown.target == scenario.partition.targets[number]
    assert json.loads(json.dumps(asdict(summary)))["config"]["scenario"] == name


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([3, 1], [3, 1], 1.0),
        ([30, 10], [3, 1], 1.0),
        ([5, 0], [0, 2], 0.0),
        ([1, 1, 0], [0, 1, 3], 0.25),
        ([0, 0], [1, 1], None),
        ([1, 1], [0, 0], None),
    ],
)
def test_overlap_by_hand(first: list[int], second: list[int], expected: float | None) -> None:
    assert overlap(first, second) == expected


def test_targets_elsewhere_overlap_less(digits: DataSet) -> None:
    latent, ood = (
        summarise_scenario(ScenarioConfig(scenario=name), digits, 0).mean_overlap for name in ("latent", "ood")
    )
    assert latent is not None
    assert ood is not None
    assert latent > 0.8 > 0.5 > ood


def test_the_papers_figure_stands_where_there_is_one() -> None:
    config = ScenarioConfig(clients=10, distributions=10, representation="classes")
    summary = summarise_scenario(config, named("cifar10"), seed=0)
    assert summary.emd_published == 2.70
    assert summary.emd_official == pytest.approx(2.70), "one class a client is how the paper's figure came about"
    assert summarise_scenario(config, named("another"), seed=0).emd_published is None
    assert summarise_scenario(ScenarioConfig(scenario="pathological"), named("cifar10"), seed=0).emd_published is None
    shared = ScenarioConfig(clients=10, distributions=10, representation="classes", share_fraction=0.1)
    assert summarise_scenario(shared, named("cifar10"), seed=0).emd_published is None
    assert {tuple(figures) for figures in PUBLISHED_EMD.values()} == {(2, 3, 4, 5, 10)}


def test_clients_without_examples_have_no_overlap() -> None:
    few = DataSet("few", *[Examples(torch.zeros(3, 1, 2, 2), torch.tensor([0, 1, 1]))] * 2, 2, "")
    summary = summarise_scenario(ScenarioConfig(scenario="iid", clients=5), few, seed=0)
    assert [client.overlap for client in summary.clients[3:]] == [None, None]
    assert any(note.startswith("client 4 has no training examples") for note in summary.warnings)


def test_a_summary_warns_of_examples_that_nobody_holds_as_a_run_does(digits: DataSet) -> None:
    config = ScenarioConfig(scenario="pairs", distributions=2, clients=6, classes_per_client=2)
    summary, scenario = summarise_scenario(config, digits, seed=3), build_scenario(config, digits, seed=3)
    assert summary.warnings == scenario.warnings
    assert "training examples are left to nobody" in summary.warnings[0]
