"""Groups of similar images that were found once and are kept: one small number per image.

Finding them means training VGG-11 for hours, so those of the public sets ship with the library, and what a user
builds is kept in the cache. A file belongs to the very images and labels whose fingerprint it bears.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from fedfomo.core.archives import read_npz
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.cache import cache_folder
from fedfomo.datasets.embedding import Progress, Schedule, build_embedding
from fedfomo.datasets.latent import Groups, find_clusters, principal_components
from fedfomo.errors import InputError, require
from fedfomo.io import write_atomically

PUBLISHED_NUMBERS = (2, 3, 4, 5, 10)
"""The numbers of groups (D) in the paper's tables."""

SHIPPED = Path(__file__).parent / "groups"
_MOST_GROUPS = 256  # a group is stored in one byte


@dataclass(frozen=True)
class Assignments:
    """The groups of one data set's images, for several numbers of groups."""

    fingerprint: str  # of the data set
    accuracy: float  # of the network in whose activations the groups were found, on the test images
    groups: Mapping[int, tuple[Groups, Groups]]  # number of groups → groups of the training and the test images


def find_groups(data: DataSet, num_groups: int) -> tuple[Groups, Groups] | None:
    """Return the groups of a set's training and test images, if any are kept for that number of groups."""
    for file in _files():
        found = _read(file, data, (num_groups,))
        if found is not None and num_groups in found.groups:
            return found.groups[num_groups]
    return None


def known_numbers(data: DataSet) -> list[int]:
    """List the numbers of groups that are kept for a set."""
    kept = [_read(file, data) for file in _files()]
    return sorted({number for found in kept if found is not None for number in found.groups})


def own_file(data: DataSet) -> Path:
    """Return where the cache keeps the groups that a user builds for a set."""
    return cache_folder() / "groups" / f"{data.fingerprint[:16]}.npz"


def write_groups(assignments: Assignments, file: Path) -> None:
    """Write assignments to a file, which is there complete or not at all."""
    arrays: dict[str, Any] = {"fingerprint": assignments.fingerprint, "accuracy": assignments.accuracy}
    for number, (train, test) in assignments.groups.items():
        _require_a_byte_is_enough(number)
        arrays[f"train_{number}"], arrays[f"test_{number}"] = train.astype(np.uint8), test.astype(np.uint8)
    file.parent.mkdir(parents=True, exist_ok=True)
    content = BytesIO()
    np.savez_compressed(content, **arrays)
    write_atomically(file, content.getbuffer())


def build_groups(
    data: DataSet,
    folder: Path,
    schedule: Schedule,
    numbers: Sequence[int] = PUBLISHED_NUMBERS,
    report: Callable[[Progress], None] = lambda _: None,
    tell: Callable[[str], None] = lambda _: None,
) -> Assignments:
    """Follow the paper's pipeline: train VGG-11, embed every image, reduce to 256 dimensions, cluster.

    The folder keeps what is done, so that an interrupted build goes on where it stopped.
    """
    for number in numbers:
        _require_a_byte_is_enough(number)
        images = len(data.train) + len(data.test)
        require(number <= images, f"{number} groups of {images} images: give {images} at most")
    embedding = build_embedding(data, folder, schedule, report)
    tell(f"the network classifies {100 * embedding.accuracy:.2f} % of the test images correctly")
    points = principal_components(np.asarray(embedding.rows, dtype=np.float32))
    groups: dict[int, tuple[Groups, Groups]] = {}
    for number in numbers:
        found = find_clusters(points, number)
        groups[number] = found[: len(data.train)], found[len(data.train) :]
        tell(f"{number} groups of {', '.join(f'{size:,}' for size in np.bincount(found).tolist())} images")
    return Assignments(data.fingerprint, embedding.accuracy, groups)


def _files() -> Iterator[Path]:
    for folder in (cache_folder() / "groups", SHIPPED):
        yield from sorted(folder.glob("*.npz"))


def _read(file: Path, data: DataSet, numbers: Sequence[int] | None = None) -> Assignments | None:
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
        return Assignments(data.fingerprint, float(archive["accuracy"]), groups)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{file} is not a whole file of groups ({error}): remove it, or build it again") from error


def _checked(archive: Mapping[str, np.ndarray], part: str, number: int, data: DataSet) -> Groups:
    groups = archive[f"{part}_{number}"]
    count = len(data.train if part == "train" else data.test)
    if groups.dtype != np.uint8 or groups.shape != (count,) or (count and groups.max() >= number):
        raise ValueError(f"{part}_{number} does not hold one group below {number} for each of {count} images")
    return groups.astype(np.int64)


def _require_a_byte_is_enough(number: int) -> None:
    require(1 <= number <= _MOST_GROUPS, f"{number} groups: give 1 to {_MOST_GROUPS}")
