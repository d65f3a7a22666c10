"""Latent distributions: hidden groups of similar images (Zhang et al., 2021, appendix).

A representation of every image, reduced by PCA, is clustered by K-Means; each cluster is one distribution
from which clients sample. The training and test parts are clustered together and kept apart otherwise.
"""

import warnings
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedfomo.core.data import Examples
from fedfomo.core.determinism import one_thread_for_clusters, one_torch_thread
from fedfomo.core.rng import layer_rng, numpy_stream, stream
from fedfomo.datasets.bundled import DataSet
from fedfomo.errors import InputError

Representation = npt.NDArray[np.float32]
Groups = npt.NDArray[np.int64]


def latent_groups(
    train_representation: Representation,
    test_representation: Representation,
    num_groups: int,
    num_components: int = 256,
    seed: int = 0,
) -> tuple[Groups, Groups]:
    """Return the group of every training and every test example; group 0 is the largest."""
    points = np.concatenate([train_representation, test_representation])
    groups = find_clusters(principal_components(points, num_components), num_groups, seed)
    return groups[: len(train_representation)], groups[len(train_representation) :]


def principal_components(points: Representation, num_components: int = 256) -> Representation:
    """Reduce every point to its coordinates along the directions in which points differ most."""
    from sklearn.decomposition import PCA

    if not len(points):
        return points
    if not np.isfinite(points).all():
        raise InputError("the representation holds values that are not finite: check the inputs")
    with _clustering():
        solver = "covariance_eigh" if points.shape[0] >= points.shape[1] else "full"
        return PCA(min(num_components, *points.shape), svd_solver=solver).fit_transform(points)


def find_clusters(points: Representation, num_groups: int, seed: int = 0) -> Groups:
    """Return the group of every point, by K-Means; group 0 is the largest."""
    from sklearn.cluster import KMeans

    if not 1 <= num_groups <= len(points):
        raise InputError(f"{num_groups} groups of {len(points)} examples: give 1 to {len(points)} distributions")
    random_state = int(numpy_stream(seed, "k-means").integers(2**31))
    with _clustering():
        means = KMeans(num_groups, n_init=5, max_iter=100, random_state=random_state)  # pyright: ignore[reportArgumentType]
        groups = _largest_first(np.asarray(means.fit_predict(points), dtype=np.int64))
    if groups.max() + 1 < num_groups:
        raise InputError(f"only {groups.max() + 1} of {num_groups} groups differ: give that many distributions at most")
    return groups


def pixel_representation(data: DataSet) -> tuple[Representation, Representation]:
    """Represent every example of both parts by its inputs as they are."""
    return _as_array(data.train.inputs.flatten(1)), _as_array(data.test.inputs.flatten(1))


def network_representation(data: DataSet, seed: int = 0) -> tuple[Representation, Representation]:
    """Represent every example of both parts by a hidden layer of a network trained on the labels.

    Departs from the paper: two fully connected layers and a classifier stand in for VGG-11, which small sets
    cannot feed. As there, an example is represented by what the second fully connected layer gives out.
    """
    with one_torch_thread():
        with layer_rng(stream(seed, "representation", "initial weights")):
            first = nn.Linear(data.train.inputs[0].numel(), 128)
            second = nn.Linear(128, 64)
            classifier = nn.Linear(64, data.num_classes)
        hidden = nn.Sequential(nn.Flatten(), first, nn.ReLU(), second)
        network = nn.Sequential(hidden, nn.ReLU(), classifier)
        _fit(network, data.train, stream(seed, "representation", "batches"))
        with torch.no_grad():
            return _as_array(hidden(data.train.inputs)), _as_array(hidden(data.test.inputs))


def _fit(network: nn.Module, examples: Examples, rng: torch.Generator) -> None:
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for _ in range(20):
        for batch in examples.shuffled_batches(64, rng):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(batch.inputs), batch.labels).backward()
            optimiser.step()


def _largest_first(groups: Groups) -> Groups:
    """Renumber groups: the largest comes first, and of equals the one with the earliest member."""
    _, first_members, numbers, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    rank = np.empty(len(sizes), dtype=np.int64)
    rank[np.lexsort((first_members, -sizes))] = np.arange(len(sizes))
    return rank[numbers]


@contextmanager
def _clustering() -> Generator[None, None, None]:
    with one_thread_for_clusters(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few distinct points: refused afterwards, in words
        yield


def _as_array(tensor: Tensor) -> Representation:
    return tensor.numpy().astype(np.float32)
