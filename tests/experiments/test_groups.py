"""Groups from ImageNet features: what is said of them, how features are kept, and the files that are built."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from experiments.iclr2021.groups import build, table
from experiments.iclr2021.groups.classifiers import LabelledFeatures, linear_probe, trained_hidden_layer
from experiments.iclr2021.groups.group_facts import describe_groups, name_classes
from experiments.iclr2021.groups.imagenet_features import FeatureCache, ImageNetNetwork
from fedfomo.core.archives import read_npz
from fedfomo.core.data import Examples
from fedfomo.datasets import latent_groups
from fedfomo.datasets.bundled import DataSet, fingerprint

BUILT = Path(build.__file__).parent / "built"


def some_images(train: int = 120, test: int = 60, classes: int = 2) -> DataSet:
    rng = torch.Generator().manual_seed(0)
    parts = [
        Examples(torch.rand(count, 1, 8, 8, generator=rng), torch.arange(count) % classes) for count in (train, test)
    ]
    return DataSet("mnist", *parts, num_classes=classes, fingerprint=fingerprint(*parts))


def test_groups_that_are_classes_leave_no_client_informative():
    data = some_images()
    facts = describe_groups(data, data.train.labels.numpy(), data.test.labels.numpy(), 2)
    assert facts.sizes == (90, 90)
    assert facts.counts == ((90, 0), (0, 90))
    assert facts.single_class_groups == 2
    assert facts.informative_clients == facts.mixed_clients == 0
    assert facts.constant_answer == 100
    assert facts.label_distance_l1 == pytest.approx(1)


def test_groups_that_have_nothing_to_do_with_classes_leave_every_client_informative():
    data = some_images(train=1200, test=1200)
    halves = [np.arange(len(part)) // (len(part) // 2) for part in (data.train, data.test)]
    facts = describe_groups(data, *halves, 2)
    assert facts.single_class_groups == 0
    assert facts.informative_clients == facts.mixed_clients == 15


def test_classes_are_named_from_the_most_frequent_one_on():
    assert name_classes([[1, 3, 0], [0, 0, 5]], ["a", "b", "c"]) == ["b 75, a 25", "c 100"]


class CountedMeans(nn.Module):
    """Stands in for the network; it is traced once for every part that lacks a block."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return images.mean((2, 3))


def test_features_are_computed_once_and_then_read(tmp_path):
    data, network = some_images(), CountedMeans().eval()
    cache = FeatureCache(ImageNetNetwork(network, "0" * 64), tmp_path, side=16)
    first = cache.compute(data)
    assert [part.shape for part in first] == [(120, 3), (60, 3)]
    calls = network.calls
    second = cache.compute(data)
    assert network.calls == calls
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_missing_block_is_computed_again(tmp_path):
    cache = FeatureCache(ImageNetNetwork(CountedMeans().eval(), "0" * 64), tmp_path, side=16)
    data = some_images()
    first = cache.compute(data)
    next(tmp_path.rglob("test-00000.npy")).unlink()
    assert np.array_equal(first[1], cache.compute(data)[1])


def separable() -> LabelledFeatures:
    rng = np.random.default_rng(0)
    labels = np.arange(400) % 2
    points = rng.normal(size=(400, 6)).astype(np.float32) + 4 * labels[:, None].astype(np.float32)
    return LabelledFeatures.standardise(points[:300], labels[:300], points[300:], labels[300:])


def test_a_feature_that_hardly_differs_is_not_scaled_up():
    train = np.zeros((100, 1), dtype=np.float32)
    labels = np.zeros(100, dtype=np.int64)
    data = LabelledFeatures.standardise(train, labels, train + 0.02, labels)
    assert data.test.max() == pytest.approx(1, rel=1e-3)


def test_a_linear_probe_finds_what_a_line_divides():
    assert linear_probe(separable()) == 1


def test_a_trained_layer_is_the_same_every_time():
    first, second = (trained_hidden_layer(separable(), width=16, epochs=40) for _ in range(2))
    assert first[0] == second[0] > 0.9
    assert first[1].shape == (300, 16)
    assert np.array_equal(first[2], second[2])


@pytest.mark.parametrize("file", sorted(BUILT.glob("*.npz")), ids=lambda file: file.stem)
def test_built_groups_belong_to_the_published_images_and_agree_with_their_facts(file):
    name = file.stem.removesuffix("-trained-layer")
    stored = read_npz(file)
    assert str(stored["fingerprint"]) == str(read_npz(latent_groups.SHIPPED / f"{name}.npz")["fingerprint"])
    facts = json.loads((BUILT / f"{name}.json").read_text())
    told = facts["imagenet" if file.stem == name else "trained_layer"]
    assert float(stored["accuracy"]) == told["accuracy"]
    for number in (2, 3, 4, 5, 10):
        groups = np.concatenate([stored[f"train_{number}"], stored[f"test_{number}"]])
        assert np.bincount(groups, minlength=number).tolist() == told["groups"][str(number)]["sizes"]


def test_the_table_in_the_readme_is_that_of_the_built_groups(capsys):
    table.main()
    assert capsys.readouterr().out.strip() in (Path(build.__file__).parent / "README.md").read_text()
