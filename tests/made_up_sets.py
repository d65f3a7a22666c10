"""Made-up data sets of images, and groups that ship for them."""

from pathlib import Path

import numpy as np
import torch

from fedfomo.core.data import Examples
from fedfomo.core.rng import stream
from fedfomo.datasets import latent_groups
from fedfomo.datasets.bundled import DataSet, fingerprint
from fedfomo.datasets.latent_groups import LatentGroups, save_groups
from fedfomo.datasets.readers import read_folder


def write_toys(folder: Path) -> Path:
    """Write a set of ten classes, `toys`, and return its folder."""
    rng = np.random.default_rng(0)
    labels = np.arange(1200) % 10
    images = (rng.random((1200, 8, 8, 3)) * 100 + 15 * labels[:, None, None, None]).astype(np.uint8)
    folder.mkdir()
    np.savez(
        folder / "toys.npz",
        x_train=images[:1000],
        y_train=labels[:1000],
        x_test=images[1000:],
        y_test=labels[1000:],
    )
    return folder


def ship_groups(folder: Path) -> None:
    """Ship groups of neighbouring classes."""
    data = read_folder(folder, "toys")
    train, test = data.train.labels.numpy(), data.test.labels.numpy()
    groups = {number: (train * number // 10, test * number // 10) for number in (2, 3, 4, 5, 10)}
    save_groups(LatentGroups(data.fingerprint, 0.9, groups), latent_groups.SHIPPED / "toys.npz")


def made_up(size: int = 200, num_classes: int = 10) -> DataSet:
    labels = torch.arange(size) % num_classes
    images = torch.rand(size, 3, 8, 8, generator=stream(0, "made-up images")) / 2
    images += (labels / num_classes / 2)[:, None, None, None]
    cut = size * 4 // 5
    train, test = Examples(images[:cut], labels[:cut]), Examples(images[cut:], labels[cut:])
    return DataSet("made-up", train, test, num_classes, fingerprint(train, test))
