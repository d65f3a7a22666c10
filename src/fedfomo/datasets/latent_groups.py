"""Latent distributions: hidden groups of similar images (Zhang et al., 2021, appendix).

A representation of every image, reduced by PCA, is clustered by K-Means; each cluster is one distribution from which
clients sample. The training and test parts are clustered together and kept apart otherwise.

The groups of the public sets were found once, in what a network trained on ImageNet makes of their images, and ship
with the library, one small number per image. A file of groups for any other set is found in the cache; `user_file`
says where, `save_groups` writes it.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedfomo.core.archives import read_npz
from fedfomo.core.data import Examples
from fedfomo.core.determinism import one_blas_thread, one_torch_thread
from fedfomo.core.rng import layer_rng, numpy_stream, stream
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.cache import cache_folder
from fedfomo.errors import InputError, require
from fedfomo.io import write_atomically

Representation = npt.NDArray[np.float32]
Groups = npt.NDArray[np.int64]

SHIPPED = Path(__file__).parent / "groups"
OLDER = "vgg"
"""Folder, among the shipped groups, of those that shipped first."""
_MOST_GROUPS = 256  # a group is stored in one byte


@dataclass(frozen=True)
class LatentGroups:
    """The groups of one data set's images, for several numbers of groups."""

    fingerprint: str  # of the data set
    accuracy: float  # of a classifier of the representation in which the groups were found, on the test images
    groups: Mapping[int, tuple[Groups, Groups]]  # number of groups → groups of the training and the test images


def load_groups(data: DataSet, num_groups: int, older: bool = False) -> tuple[Groups, Groups] | None:
    """Return the groups of a set's training and test images, if any are kept for that number of groups."""
    for file in sorted((SHIPPED / OLDER).glob("*.npz")) if older else _files():
        found = _read(file, data, (num_groups,))
        if found is not None and num_groups in found.groups:
            return found.groups[num_groups]
    return None


def groups_in_file(file: Path, data: DataSet, num_groups: int) -> tuple[Groups, Groups]:
    """Return the groups of a set's training and test images that a user's own file has."""
    require(file.is_file(), f"there is no file {file} of latent groups")
    found = _read(file, data)
    if found is None:
        raise InputError(f"{file} has the groups of another data set than '{data.name}': make groups of this one")
    if num_groups not in found.groups:
        known = ", ".join(map(str, sorted(found.groups)))
        raise InputError(f"{file} has groups for D = {known}, not {num_groups}: give --distributions that it has")
    return found.groups[num_groups]


def numbers_kept(data: DataSet) -> list[int]:
    """List the numbers of groups that are kept for a set."""
    kept = [_read(file, data) for file in _files()]
    return sorted({number for found in kept if found is not None for number in found.groups})


def user_file(data: DataSet) -> Path:
    """Return where the cache keeps the groups that a user builds for a set."""
    return cache_folder() / "groups" / f"{data.fingerprint[:16]}.npz"


def save_groups(groups: LatentGroups, file: Path) -> None:
    """Write groups to a file, which is there complete or not at all."""
    arrays: dict[str, Any] = {"fingerprint": groups.fingerprint, "accuracy": groups.accuracy}
    for number, (train, test) in groups.groups.items():
        require_storable(number)
        arrays[f"train_{number}"], arrays[f"test_{number}"] = train.astype(np.uint8), test.astype(np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomically(file, content.getbuffer())


def require_storable(number: int) -> None:
    """Refuse a number of groups that a file cannot hold."""
    require(1 <= number <= _MOST_GROUPS, f"{number} groups: give 1 to {_MOST_GROUPS}")


def group_examples(
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
    with one_blas_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # too few distinct points: refused afterwards, in words
        yield


def _as_array(tensor: Tensor) -> Representation:
    return tensor.numpy().astype(np.float32)


def _files() -> Iterator[Path]:
    for folder in (cache_folder() / "groups", SHIPPED):
        yield from sorted(folder.glob("*.npz"))


def _read(file: Path, data: DataSet, numbers: Sequence[int] | None = None) -> LatentGroups | None:
    """Read a file's groups, or only those of some numbers, unless it belongs to another set."""
    try:
        archive = read_npz(file)
        if str(archive["fingerprint"]) != data.fingerprint:
            return None
        kept = [int(name.removeprefix("train_")) for name in archive if name.startswith("train_")]
        groups = {
            number: (_checked(archive, "train", number, data), _checked(archive, "test", number, data))
            for number in kept
            if numbers is None or number in numbers
        }
        return LatentGroups(data.fingerprint, float(archive["accuracy"]), groups)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is not a whole file of groups ({error}): remove it, or write it again") from error


def _checked(archive: Mapping[str, np.ndarray], part: str, number: int, data: DataSet) -> Groups:
    groups = archive[f"{part}_{number}"]
    count = len(data.train if part == "train" else data.test)
    if groups.dtype != np.uint8 or groups.shape != (count,) or (count and groups.max() >= number):
        raise ValueError(f"{part}_{number} does not hold one group below {number} for each of {count} images")
    return groups.astype(np.int64)
