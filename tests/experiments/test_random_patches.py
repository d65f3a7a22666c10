"""Fixed random-patch features: a data set that depends on nothing but the images and the recipe."""

import numpy as np
import pytest
import torch

from experiments.iclr2021.features.random_patches import (
    Recipe,
    keep_groups,
    make_features,
    ridge_accuracy,
    write_features,
)
from fedfomo.core.data import Examples
from fedfomo.datasets.bundled import DataSet, fingerprint
from fedfomo.datasets.latent_groups import LatentGroups, load_groups, save_groups
from fedfomo.datasets.readers import read_folder
from fedfomo.errors import InputError

RECIPE = Recipe(num_filters=16, num_whitening_patches=500)


@pytest.fixture
def images() -> DataSet:
    rng = torch.Generator().manual_seed(0)
    parts = [Examples(torch.rand(count, 3, 16, 16, generator=rng), torch.arange(count) % 3) for count in (300, 60)]
    return DataSet("noise", *parts, num_classes=3, fingerprint=fingerprint(*parts))


def test_features_are_a_data_set_that_the_library_reads(images, tmp_path):
    write_features(images, tmp_path / "noise-features.npz", RECIPE)
    features = read_folder(tmp_path, "noise-features", cache=tmp_path / "cache")
    assert features.train.inputs.shape == (300, 1, 10, 10)
    assert features.train.inputs.min() >= 0
    assert features.train.inputs.max() <= 1
    assert torch.equal(features.test.labels, images.test.labels)
    assert 0 <= ridge_accuracy(features) <= 1


def test_features_are_the_same_every_time(images):
    first, second = (make_features(images.train.inputs, images.test.inputs, RECIPE) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


def test_test_images_decide_nothing_about_training_features(images):
    train, _ = make_features(images.train.inputs, images.test.inputs, RECIPE)
    again, _ = make_features(images.train.inputs, images.test.inputs.flip(3), RECIPE)
    assert torch.equal(train, again)


def test_components_are_uncorrelated_and_the_strongest_comes_first(images):
    train, _ = make_features(images.train.inputs, images.test.inputs, RECIPE)
    covariance = torch.cov(train.T)
    variances = covariance.diagonal()
    assert (variances[:-1] >= variances[1:] - 1e-4).all()
    assert (covariance - torch.diag(variances)).abs().max() < 1e-2 * variances.max()


def test_groups_of_images_serve_their_features(images, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDFOMO_CACHE", str(tmp_path / "cache"))
    write_features(images, tmp_path / "noise-features.npz", RECIPE)
    features = read_folder(tmp_path, "noise-features")
    divided = np.arange(300) % 2, np.arange(60) % 2
    save_groups(LatentGroups(images.fingerprint, 0.5, {2: divided}), tmp_path / "groups.npz")
    keep_groups(images, features, tmp_path / "groups.npz")
    kept = load_groups(features, 2)
    assert kept is not None
    assert all(np.array_equal(one, other) for one, other in zip(kept, divided, strict=True))


def test_groups_of_other_images_are_refused(images, tmp_path):
    save_groups(LatentGroups("others", 0.5, {2: (np.zeros(300), np.zeros(60))}), tmp_path / "groups.npz")
    with pytest.raises(InputError, match="belongs to other images than 'noise'"):
        keep_groups(images, images, tmp_path / "groups.npz")
