"""Fetches the public archives of known image sets, by their checksums."""

import hashlib
import logging
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pooch

from fedfomo.errors import InputError, unknown
from fedfomo.io import make_folder

_MNIST_MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
_CIFAR_HOME = ("https://www.cs.toronto.edu/~kriz/",)
_CHUNK = 1 << 18
_PATIENCE = 30  # seconds in which nothing arrives

Report = Callable[[str, int, int], None]
"""Receives the file's name, the bytes that have arrived, and the bytes that will."""


@dataclass(frozen=True)
class Archive:
    """A file that is published under the same name in one or more places."""

    file: str
    size: int
    sha256: str
    places: tuple[str, ...]
    unpacks_to: str = ""
    """The folder that a packed archive holds; empty for a file that is used as it is."""


ARCHIVES: dict[str, tuple[Archive, ...]] = {
    "mnist": (
        Archive(
            "train-images-idx3-ubyte.gz",
            9_912_422,
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            _MNIST_MIRRORS,
        ),
        Archive(
            "train-labels-idx1-ubyte.gz",
            28_881,
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            _MNIST_MIRRORS,
        ),
        Archive(
            "t10k-images-idx3-ubyte.gz",
            1_648_877,
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            _MNIST_MIRRORS,
        ),
        Archive(
            "t10k-labels-idx1-ubyte.gz",
            4_542,
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            _MNIST_MIRRORS,
        ),
    ),
    "cifar10": (
        Archive(
            "cifar-10-binary.tar.gz",
            170_052_171,
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            _CIFAR_HOME,
            unpacks_to="cifar-10-batches-bin",
        ),
    ),
    "cifar100": (
        Archive(
            "cifar-100-binary.tar.gz",
            168_513_733,
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            _CIFAR_HOME,
            unpacks_to="cifar-100-binary",
        ),
    ),
}


def download(name: str, folder: Path, report: Report = lambda file, arrived, size: None) -> None:
    """Bring a known set's public files into a folder, from which `read_folder` then reads them."""
    if name not in ARCHIVES:
        raise unknown("data set", name, ARCHIVES)
    make_folder(folder)
    wanted = [archive for archive in ARCHIVES[name] if not _is_there(archive, folder)]
    for number, archive in enumerate(wanted):
        failures = _fetch(archive, folder, report)
        if failures:
            addresses = ", ".join(missing.places[0] + missing.file for missing in wanted[number:])
            raise InputError(
                f"cannot download {archive.file} ({'; '.join(failures)}): without a network, fetch {addresses} "
                f"on another machine, put what you get into {folder}, and run this again"
            )
    for archive in ARCHIVES[name]:
        if archive.unpacks_to and (folder / archive.file).exists():
            _unpack(folder / archive.file, folder)


def _is_there(archive: Archive, folder: Path) -> bool:
    file = folder / archive.file
    if file.is_file():
        return _digest(file) == archive.sha256
    # A packed archive is removed once it is unpacked to the end.
    return bool(archive.unpacks_to) and (folder / archive.unpacks_to).is_dir()


class _Arrivals:
    """Passes on what has arrived of a file; the interface is that of pooch's progress bars."""

    def __init__(self, archive: Archive, report: Report) -> None:
        self._archive = archive
        self._report = report
        self._arrived = self._told = 0
        self.total = 0

    def update(self, size: int) -> None:
        """Count bytes that have arrived."""
        self._arrived = min(self._arrived + size, self._archive.size)
        if self._arrived != self._told:
            self._told = self._arrived
            self._report(self._archive.file, self._told, self._archive.size)

    def reset(self) -> None:
        """Begin anew: pooch does so before it says that everything is there."""
        self._arrived = 0

    def close(self) -> None:
        """Part of the interface; nothing is open."""


def _fetch(archive: Archive, folder: Path, report: Report) -> list[str]:
    """Try the places in turn and return what went wrong with each, or nothing if one of them served."""
    pooch.get_logger().setLevel(logging.ERROR)  # it would announce every file
    failures: list[str] = []
    for place in archive.places:
        fetcher: Any = pooch.HTTPDownloader(_Arrivals(archive, report), _CHUNK, timeout=_PATIENCE)  # pyright: ignore[reportArgumentType]
        try:
            pooch.retrieve(place + archive.file, f"sha256:{archive.sha256}", archive.file, folder, downloader=fetcher)
        except OSError as error:
            failures.append(f"{place}: {_reason(error)}")
        except ValueError:  # pooch's word for another checksum
            failures.append(f"{place}: the file that came is not the published one")
        else:
            return []
    return failures


def _reason(error: BaseException) -> str:
    """Return the innermost cause: what stands around it is the network library's own affair."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return str(getattr(error, "strerror", None) or error)


def _unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    archive.unlink()


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
