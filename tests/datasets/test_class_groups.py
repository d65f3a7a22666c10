"""Groups of a few classes and concept shift, from labels alone."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from fedfomo.core.rng import numpy_stream
from fedfomo.datasets.bundled import load_digits
from fedfomo.datasets.class_groups import concept_shift, groups_of_classes, share_sent_away
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.partitions import NOBODY, shuffle_targets
from fedfomo.datasets.scenario_summary import summarise_scenario
from fedfomo.datasets.scenarios import build_scenario
from fedfomo.errors import InputError

LABELS = np.arange(10).repeat(1000)


def test_the_share_that_a_class_sends_away_is_as_worked_out_by_hand() -> None:
    # Five pairs of ten classes: each of four other groups gets 2.5 % of a class, so 8 x 2.5 % stand beside 2 x 90 %.
    assert share_sent_away(5, 2, 10) == pytest.approx(0.025)
    # Ten pairs, so that two groups share a class: eight others get 1.25 %; 8 x 1.25 % beside 2 x 90 % / 2.
    assert share_sent_away(10, 2, 10) == pytest.approx(0.0125)
    # Two pairs: 8 q = (8 q + 2 (1 - q)) / 10.
    assert share_sent_away(2, 2, 10) == pytest.approx(1 / 37)
    assert share_sent_away(3, 10, 10) == 0, "who has every class of its own has no others"


@pytest.mark.parametrize("number", [1, 2, 3, 5, 7, 10, 13])
def test_about_a_tenth_of_a_group_is_of_other_classes_than_its_own_two(number: int) -> None:
    train, test = groups_of_classes(LABELS, LABELS[::5], number, 2, seed=1)
    for groups, labels in ((train, LABELS), (test, LABELS[::5])):
        assert groups.min() >= NOBODY
        for group in range(number):
            counts = np.sort(np.bincount(labels[groups == group], minlength=10))
            assert counts[:8].sum() / counts.sum() == pytest.approx(0.1, abs=0.06)
            assert counts[8] > 3 * counts[7]


def test_nothing_is_left_over_where_every_class_has_a_group() -> None:
    train, _ = groups_of_classes(LABELS, LABELS, 5, 2, seed=0)
    assert (train != NOBODY).all()
    assert np.bincount(train).tolist() == [2000] * 5
    other, _ = groups_of_classes(LABELS, LABELS, 5, 2, seed=1)
    assert (train != other).any(), "the seed draws the pairs"


def test_a_group_cannot_have_more_classes_than_there_are() -> None:
    with pytest.raises(InputError, match="classes_per_client is 11, of 10"):
        groups_of_classes(LABELS, LABELS, 2, 11, seed=0)


def test_concept_shift_permutes_labels_by_group_and_follows_targets() -> None:
    partition = concept_shift(LABELS, LABELS[::5], 3, 6, seed=0)
    assert partition.groups == (0, 0, 1, 1, 2, 2)
    assert partition.labels_at(0, LABELS).tolist() == LABELS.tolist(), "the first group has the usual labels"
    for client in (2, 4):
        mapped = partition.labels_at(client, np.arange(10))
        assert sorted(mapped.tolist()) == list(range(10))
        assert mapped.tolist() != list(range(10))
    shuffled = shuffle_targets(partition, seed=3)
    assert shuffled.label_maps == partition.label_maps
    digits = load_digits()
    config = ScenarioConfig(scenario="concept", distributions=3, clients=6, shuffle_targets=True)
    scenario = build_scenario(config, digits, seed=3)
    moved = scenario.partition
    for number, (client, indices) in enumerate(zip(scenario.clients, moved.clients, strict=True)):
        own, target = moved.labels_at(number, np.arange(10)), moved.labels_at(moved.targets[number], np.arange(10))
        assert torch.equal(client.train.labels, torch.from_numpy(own)[digits.train.labels[indices.train]])
        assert torch.equal(client.test.labels, torch.from_numpy(target)[digits.test.labels[indices.test]])
    summary = summarise_scenario(config, digits, 3)
    counted = torch.bincount(scenario.clients[5].train.labels, minlength=10)
    assert summary.clients[5].train_labels == tuple(counted.tolist())


def test_no_two_groups_have_the_same_labels() -> None:
    # Of three labels there are six orders: six independent draws would hardly ever be all of them.
    labels = np.arange(3).repeat(40)
    for seed in range(5):
        maps = concept_shift(labels, labels, 6, 6, seed).label_maps
        assert maps is not None
        assert sorted(tuple(each.tolist()) for each in maps) == sorted(permutations(range(3)))
    # What is drawn first stays where it is no repetition.
    first = concept_shift(LABELS, LABELS, 3, 6, seed=0).label_maps
    assert first is not None
    for group in (1, 2):
        assert first[group].tolist() == numpy_stream(0, "permuted labels", group).permutation(10).tolist()


def test_more_groups_than_orders_of_the_labels_are_refused() -> None:
    labels = np.arange(3).repeat(40)
    with pytest.raises(InputError, match="distributions is 7, but 3 labels have only 6 orders"):
        concept_shift(labels, labels, 7, 7, seed=0)


def test_clients_who_disagree_on_labels_share_no_examples() -> None:
    with pytest.raises(InputError, match="leave out share_fraction"):
        ScenarioConfig(scenario="concept", share_fraction=0.1)


def test_the_summary_counts_clients_whom_a_constant_answer_does_not_serve() -> None:
    digits = load_digits()
    config = ScenarioConfig(scenario="pathological", clients=10, classes_per_client=1)
    assert summarise_scenario(config, digits, 0).num_informative == 0
    assert summarise_scenario(replace(config, classes_per_client=2), digits, 0).num_informative == 10
