"""Turn images into 100 numbers each, through fixed random-patch features.

    python -m experiments.iclr2021.features.random_patches DATA OUTPUT [--sets cifar10 cifar100] [--groups FOLDER]

DATA is the folder with the image sets. For every set, OUTPUT/SET-features.npz is written: a data set of its own, whose
examples look like grey images of 10×10 pixels, so that the library reads it and takes a small perceptron for it:

    fedfomo run --dataset cifar10-features --data OUTPUT --standardise --learning-rate 0.1

With --groups, the latent groups of the images (FOLDER/SET.npz) are kept for the features as well, in the cache where
runs look for groups. A file that exists already is not made again.

Small patches of training images, brought to one contrast and whitened, serve as convolution filters. Each filter's
response, where it is clearly positive or clearly negative, is averaged over the four quarters of the image, and the
averages are reduced by PCA. Nothing is trained, and labels are not used.
"""

from __future__ import annotations

import argparse
import io
import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from fedfomo.core.archives import read_npz
from fedfomo.core.rng import stream
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.latent_groups import LatentGroups, save_groups, user_file
from fedfomo.datasets.readers import read_folder
from fedfomo.errors import InputError
from fedfomo.io import write_atomically

_LOG = logging.getLogger(__name__)
_BATCH = 1000
_SIDE = 10  # of the grey images as which features are stored
_LEAST_DEVIATION = 0.04  # of a patch's pixels: the noise of flat patches is not blown up


@dataclass(frozen=True)
class Recipe:
    """How features are made."""

    num_filters: int = 128
    patch: int = 6  # pixels a side
    stride: int = 2
    num_whitening_patches: int = 20_000
    whitening_floor: float = 0.1  # added to the variance of every direction
    threshold: float = 0.8  # responses weaker than this count as none
    num_components: int = _SIDE**2
    seed: int = 0


def main() -> None:
    """Write the features of every set that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder with the image sets")
    parser.add_argument("output", type=Path, help="folder for the features")
    parser.add_argument("--sets", nargs="+", default=["cifar10", "cifar100"])
    parser.add_argument("--groups", type=Path, help="folder with the latent groups of the images")
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO)
    torch.set_num_threads(1)  # the order of sums, hence the features, shall not depend on the machine's cores
    for name in arguments.sets:
        images = read_folder(arguments.data, name)
        file = arguments.output / f"{name}-features.npz"
        if not file.exists():
            write_features(images, file, Recipe())
        features = read_folder(arguments.output, file.stem)
        _LOG.info(f"{file}: a linear classifier is right in {100 * ridge_accuracy(features):.2f} % of the test part")
        if arguments.groups is not None:
            kept = keep_groups(images, features, arguments.groups / f"{name}.npz")
            _LOG.info(f"the groups of {name} serve {features.name} as well: {kept}")


def write_features(images: DataSet, file: Path, recipe: Recipe) -> None:
    """Compute the features of a set's images and write them as a data set."""
    began = time.process_time()
    train, test = make_features(images.train.inputs, images.test.inputs, recipe)
    # Data sets hold fractions from 0 to 1. Standardising, which runs do, takes this scale off again.
    extent = 2 * float(torch.maximum(train.abs().max(), test.abs().max()))
    content = io.BytesIO()
    np.savez(
        content,
        x_train=_as_images(train / extent),
        y_train=images.train.labels.numpy().astype(np.uint8),
        x_test=_as_images(test / extent),
        y_test=images.test.labels.numpy().astype(np.uint8),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, content.getbuffer())
    _LOG.info(f"{file}: made in {time.process_time() - began:.0f} s of one core")


def make_features(train: Tensor, test: Tensor, recipe: Recipe) -> tuple[Tensor, Tensor]:
    """Return the features of both parts. What they depend on is measured in the training images alone."""
    filters = whitened_filters(train, recipe)
    pooled_train, pooled_test = (_pool_responses(part, filters, recipe) for part in (train, test))
    mean, deviation = pooled_train.mean(0), pooled_train.std(0) + 1e-3
    pooled_train, pooled_test = (pooled_train - mean) / deviation, (pooled_test - mean) / deviation
    variances, directions = torch.linalg.eigh(torch.cov(pooled_train.double().T))
    directions = directions[:, -recipe.num_components :].flip(1)
    variances = variances[-recipe.num_components :].flip(0)
    # An eigenvector's sign is arbitrary: let its largest entry be positive.
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    # Half-way to whitening: weak components still count for less, but a perceptron's steps reach them.
    projection = (directions * largest.sign() / variances**0.25).float()
    return pooled_train @ projection, pooled_test @ projection


def whitened_filters(images: Tensor, recipe: Recipe) -> Tensor:
    """Return filters (F, C, P, P): random patches, whitened twice, since a response compares two whitened patches."""
    rng = stream(recipe.seed, "features", "patches")
    count, size = recipe.num_whitening_patches, recipe.patch
    windows = images.unfold(2, size, 1).unfold(3, size, 1)  # (N, C, rows, columns, P, P), a view
    chosen = torch.randint(len(images), (count,), generator=rng)
    rows, columns = (torch.randint(windows.shape[axis], (count,), generator=rng) for axis in (2, 3))
    patches = windows[chosen, :, rows, columns].flatten(1)
    patches = (patches - patches.mean(1, keepdim=True)) / (patches.std(1, keepdim=True) + _LEAST_DEVIATION)
    centre = patches.mean(0)
    variances, directions = torch.linalg.eigh(torch.cov((patches - centre).double().T))
    whitening = (directions / (variances + recipe.whitening_floor).sqrt() @ directions.T).float()
    whitened = (patches[: recipe.num_filters] - centre) @ whitening
    filters = functional.normalize(whitened) @ whitening
    return filters.view(recipe.num_filters, images.shape[1], size, size)


def ridge_accuracy(data: DataSet, penalty: float = 1.0) -> float:
    """Return the test accuracy of ridge regression on the labels, of standardised features."""
    mean, deviation = data.train.inputs.mean(), data.train.inputs.std()
    train, test = (
        functional.pad((part.inputs.flatten(1) - mean) / deviation, (0, 1), value=1.0).double()
        for part in (data.train, data.test)
    )
    targets = functional.one_hot(data.train.labels, data.num_classes).double()
    system = train.T @ train + penalty * torch.eye(train.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(system, train.T @ targets)
    return float(((test @ weights).argmax(1) == data.test.labels).double().mean())


def keep_groups(images: DataSet, features: DataSet, file: Path) -> Path:
    """Keep the groups of images for their features, too, and return the file."""
    stored = read_npz(file)
    if str(stored["fingerprint"]) != images.fingerprint:
        raise InputError(f"{file} belongs to other images than '{images.name}': build the groups of these")
    numbers = sorted(int(name.removeprefix("train_")) for name in stored if name.startswith("train_"))
    groups = {number: (stored[f"train_{number}"], stored[f"test_{number}"]) for number in numbers}
    target = user_file(features)
    save_groups(LatentGroups(features.fingerprint, float(stored["accuracy"]), groups), target)
    return target


def _pool_responses(images: Tensor, filters: Tensor, recipe: Recipe) -> Tensor:
    return torch.cat([_pool_batch(batch, filters, recipe) for batch in images.split(_BATCH)])


def _pool_batch(images: Tensor, filters: Tensor, recipe: Recipe) -> Tensor:
    mean, deviation = images.mean((1, 2, 3), keepdim=True), images.std((1, 2, 3), keepdim=True)
    responses = functional.conv2d((images - mean) / (deviation + _LEAST_DEVIATION), filters, stride=recipe.stride)
    both = torch.cat([torch.relu(sign * responses - recipe.threshold) for sign in (1, -1)], dim=1)
    return functional.adaptive_avg_pool2d(both, 2).flatten(1)


def _as_images(fractions: Tensor) -> np.ndarray:
    return (0.5 + fractions).clamp(0, 1).view(-1, _SIDE, _SIDE).numpy()


if __name__ == "__main__":
    main()
