"""A scenario turns indices into clients, measures them, and names those that hold too little."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from fedfomo.core.data import Examples
from fedfomo.datasets.bundled import DataSet, load_digits
from fedfomo.datasets.config import SCENARIOS, ScenarioConfig
from fedfomo.datasets.partitions import shuffle_targets
from fedfomo.datasets.scenarios import Scenario, build_scenario
from fedfomo.errors import InputError


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load_digits()


@pytest.fixture(scope="module", params=sorted(SCENARIOS))
def scenario(request: pytest.FixtureRequest, digits: DataSet) -> Scenario:
    return build_scenario(ScenarioConfig(scenario=request.param), digits, seed=0)


def test_clients_hold_the_examples_that_their_indices_say(scenario: Scenario, digits: DataSet) -> None:
    assert len(scenario.clients) == len(scenario.partition.clients) == 15
    for client, indices in zip(scenario.clients, scenario.partition.clients, strict=True):
        assert torch.equal(client.train.inputs, digits.train.inputs[indices.train])
        assert torch.equal(client.validation.inputs, digits.train.inputs[indices.validation])
        assert torch.equal(client.test.inputs, digits.test.inputs[indices.test])
        if not scenario.partition.label_maps:
            assert torch.equal(client.validation.labels, digits.train.labels[indices.validation])
    assert sum(len(client.train) + len(client.validation) for client in scenario.clients) == len(digits.train)
    assert sum(len(client.test) for client in scenario.clients) == len(digits.test)
    assert scenario.warnings == ()


def test_heterogeneity_is_ordered(digits: DataSet) -> None:
    def distance(name: str) -> float:
        return build_scenario(ScenarioConfig(scenario=name), digits, seed=0).emd_l1

    assert distance("iid") < 0.4 < 1.2 < distance("latent") < distance("pathological")
    # Two of ten nearly equal classes a client: 2·0.4 + 8·0.1.
    assert distance("pathological") == pytest.approx(1.6, abs=0.01)


def test_official_distance_counts_shared_labels_twice(digits: DataSet) -> None:
    scenario = build_scenario(ScenarioConfig(scenario="pathological"), digits, seed=0)
    assert scenario.emd_official == pytest.approx(2.4, abs=0.01)


def test_ood_is_latent_with_shuffled_targets(digits: DataSet) -> None:
    latent = build_scenario(ScenarioConfig(scenario="latent"), digits, seed=3)
    ood = build_scenario(ScenarioConfig(scenario="ood"), digits, seed=3)
    same = build_scenario(ScenarioConfig(scenario="latent", shuffle_targets=True), digits, seed=3)
    assert latent.partition.groups == ood.partition.groups == tuple(np.repeat(range(5), 3).tolist())
    assert ood.partition.targets == same.partition.targets == shuffle_targets(latent.partition, 3).targets
    for client, target in enumerate(ood.partition.targets):
        assert torch.equal(ood.clients[client].train.inputs, latent.clients[client].train.inputs)
        assert torch.equal(ood.clients[client].validation.inputs, latent.clients[target].validation.inputs)
        assert torch.equal(ood.clients[client].test.inputs, latent.clients[target].test.inputs)
    assert ood.emd_l1 == latent.emd_l1
    assert latent.partition.share_out_of_distribution == 0 < ood.partition.share_out_of_distribution


def test_seeds_deal_the_same_groups_anew(digits: DataSet) -> None:
    config = ScenarioConfig(clients=5)
    first, other = (build_scenario(config, digits, seed).partition.clients for seed in (0, 1))
    for own, others in zip(first, other, strict=True):
        assert sorted([*own.train, *own.validation]) == sorted([*others.train, *others.validation])
        assert not np.array_equal(own.train, others.train)


def test_representation_decides_the_groups(digits: DataSet) -> None:
    pixels = build_scenario(ScenarioConfig(representation="pixels"), digits, seed=0)
    network = build_scenario(ScenarioConfig(representation="network"), digits, seed=0)
    assert network.emd_l1 > pixels.emd_l1, "groups found in activations follow the classes"


@pytest.mark.parametrize(("num_classes", "per_client"), [(2, 1), (10, 2), (100, 20)])
def test_a_client_holds_a_fifth_of_the_classes_unless_told(num_classes: int, per_client: int) -> None:
    examples = Examples(torch.zeros(4000, 1), torch.arange(4000) % num_classes)
    data = DataSet("many classes", examples, examples, num_classes, "")
    for client in build_scenario(ScenarioConfig(scenario="pathological"), data, seed=0).clients:
        assert len(client.train.labels.unique()) == per_client
        assert torch.equal(client.train.labels.unique(), client.test.labels.unique())
    for client in build_scenario(ScenarioConfig(scenario="pathological", classes_per_client=1), data, seed=0).clients:
        assert len(client.train.labels.unique()) == 1


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_more_clients_than_examples_are_named(name: str, digits: DataSet) -> None:
    few = DataSet("few", digits.train.take(torch.arange(30)), digits.test.take(torch.arange(20)), 10, "")
    scenario = build_scenario(ScenarioConfig(scenario=name, clients=45), few, seed=0)
    empty = [number for number, client in enumerate(scenario.clients) if len(client.train) == 0]
    assert empty
    for number in empty:
        start = f"client {number} has no training examples and "
        assert any(note.startswith(start) for note in scenario.warnings)


def test_warnings_say_what_is_missing(digits: DataSet) -> None:
    few = DataSet("few", digits.train.take(torch.arange(3)), digits.test.take(torch.arange(1)), 10, "")
    scenario = build_scenario(ScenarioConfig(scenario="iid", clients=2), few, seed=0)
    assert scenario.warnings == (
        "client 1 has 1 training example and no validation examples: it receives models but contributes none",
        "client 1 has no test examples: its accuracy cannot be measured",
    )


def test_nothing_to_train_on_is_refused(digits: DataSet) -> None:
    nothing = DataSet("nothing", digits.train.take(torch.arange(0)), digits.test, 10, "")
    with pytest.raises(InputError, match="no client has a training example of 'nothing'"):
        build_scenario(ScenarioConfig(scenario="iid"), nothing, seed=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scenario": "latnet"}, "did you mean 'latent'"),
        ({"representation": "pixel"}, "did you mean 'pixels'"),
        ({"clients": 0}, "clients is 0"),
        ({"distributions": 0}, "distributions is 0"),
        ({"classes_per_client": -1}, "classes_per_client is -1"),
        ({"classes_per_client": 0}, "classes_per_client is 0"),
        ({"share_fraction": -0.05}, "share_fraction is -0.05"),
        ({"share_fraction": 5}, "share_fraction is 5"),
        ({"data_fraction": 0.0}, "data_fraction is 0.0"),
        ({"data_fraction": 1.5}, "data_fraction is 1.5"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"alpha": 0}, "alpha is 0"),
        ({"alpha": float("inf")}, "alpha is inf"),
        ({"validation_fraction": 0.0}, "validation_fraction is 0.0"),
        ({"validation_fraction": 1}, "validation_fraction is 1"),
        ({"validation_fraction": float("nan")}, "validation_fraction is nan"),
    ],
)
def test_bad_settings_are_refused_in_words(settings: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ScenarioConfig(**settings)  # pyright: ignore[reportArgumentType]


def test_settings_need_no_heavy_import() -> None:
    code = "import sys, fedfomo.datasets.config; print(*{'torch', 'numpy', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
