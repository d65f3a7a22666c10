"""Image sets read from a folder, in whichever of the usual formats the folder holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedfomo.core.data import Examples
from fedfomo.datasets.bundled import DataSet, fingerprint, load_digits
from fedfomo.datasets.cache import cache_folder, cached
from fedfomo.datasets.formats import IMAGE_SUFFIXES, Part, decode_cifar, decode_idx, decode_images, decode_npz
from fedfomo.errors import InputError, require

# SHA-256 of each set's bytes: images as (N, H, W, C), labels as one byte each.
KNOWN_SETS: dict[str, dict[str, str]] = {
    "mnist": {
        "training images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "training labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "test images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "test labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    },
    "cifar10": {
        "training images": "47af8b02cfcfb6cdf3dbbd1969ad7f1b70f4413f6f80f437b020ee4e5bc8304a",
        "training labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test images": "f9b1e2130bab680db56eb06d886f7f1ad0f1183907ceff4659d1735c890f5b04",
        "test labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
    "cifar100": {
        "training images": "4e457917601a66aed021f5fa37957b56c6319557c0a8ed5484de3c390af45430",
        "training labels": "9f11b9f97aad759ba6df0a33e3218b01d8deaf4ed3a14aa1185d69b9ad7ebcb3",
        "test images": "4cb8e5d9309da489bf6b19cc10cd96c3ae6f8daf225380b605aaee4c0d6aee19",
        "test labels": "4dad7d09c7c97d33f6cb928d705cf4196221316fd6e31bdd978a08ed9103ee0b",
    },
}

# Where the public archives, once unpacked, keep their files.
_SUBFOLDERS = ("", "MNIST/raw", "cifar-10-batches-bin", "cifar-100-binary")
_CIFAR10_BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")
_PICKLES = (
    "cifar-10-batches-py",
    "cifar-100-python",
    "cifar-10-python.tar.gz",
    "cifar-100-python.tar.gz",
    "data_batch_1",
)


@dataclass(frozen=True)
class _Source:
    """A set that was found in a folder but is not read yet."""

    name: str
    files: tuple[Path, ...]
    decode: Callable[[], tuple[Part, Part]]


def load_data(name: str, folder: Path | None) -> DataSet:
    """Load the set that ships with the library by its name, any other from its folder."""
    require(
        name == Path(name).name,
        f"'{name}' is no name of a data set: give its folder with --data, without a path in --dataset",
    )
    if name == "digits":
        if folder is not None:
            raise _not_digits(folder)
        return load_digits()
    if folder is None:
        raise InputError(f"where is dataset '{name}'? Give its folder with --data; only digits ships with fedfomo")
    return read_folder(folder, name)


def read_folder(folder: Path | str, name: str | None = None, cache: Path | None = None) -> DataSet:
    """Read the set that a folder holds; the name chooses among several, and a known set's name must be true."""
    folder = Path(folder)
    source = _choose(folder, name)
    data = cached(source.files, lambda: _read(source, folder), cache or cache_folder())
    if name is None or name == data.name:
        return data
    if name in KNOWN_SETS:
        different = [what for what, digest in _digests(data).items() if digest != KNOWN_SETS[name][what]]
        files = ", ".join(file.name for file in source.files[:6])
        raise InputError(
            f"the {' and '.join(different)} in {folder} ({files}) are not those of '{name}': "
            "fetch the files again, or give the set another name"
        )
    return replace(data, name=name)


def _choose(folder: Path, name: str | None) -> _Source:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}: give the one that holds the data set's files")
    sources = list(_find(folder))
    if not sources:
        raise _nothing_in(folder)
    names = sorted({source.name for source in sources})
    # A lone set may be given any name; of several, the name must be one.
    if name in names or (name is not None and len(names) > 1):
        sources = [source for source in sources if source.name == name]
    elif len(names) > 1:
        raise InputError(f"{folder} holds several data sets: choose one of {', '.join(names)}")
    if not sources:
        raise InputError(f"{folder} does not hold '{name}': choose one of {', '.join(names)}")
    missing = [file for file in sources[0].files if not file.is_file()]
    if missing and missing[0].is_dir():
        raise InputError(f"{missing[0]} is a folder: put the file of that name there")
    if missing:
        raise InputError(f"{missing[0]} is missing beside {sources[0].name}'s other files: put it there")
    return sources[0]


def _find(folder: Path) -> Iterator[_Source]:
    for place in (folder / subfolder for subfolder in _SUBFOLDERS):
        idx = [_idx_file(place, stem) for stem in ("train-images", "train-labels", "t10k-images", "t10k-labels")]
        if any(file.is_file() for file in idx):
            yield _Source("mnist", tuple(idx), lambda idx=idx: (decode_idx(*idx[:2]), decode_idx(*idx[2:])))
        ten = [place / batch for batch in _CIFAR10_BATCHES]
        if any(file.is_file() for file in ten):
            yield _Source(
                "cifar10", tuple(ten), lambda ten=ten: (decode_cifar(ten[:5], 1, 10), decode_cifar(ten[5:], 1, 10))
            )
        hundred = [place / "train.bin", place / "test.bin"]
        if any(file.is_file() for file in hundred):
            yield _Source(
                "cifar100",
                tuple(hundred),
                lambda hundred=hundred: (decode_cifar(hundred[:1], 2, 100), decode_cifar(hundred[1:], 2, 100)),
            )
    for file in sorted(folder.glob("*.npz")):
        yield _Source(file.stem, (file,), lambda file=file: decode_npz(file))
    train, test = _image_files(folder / "train"), _image_files(folder / "test")
    if train and test:
        yield _Source(folder.resolve().name, (*train, *test), lambda: decode_images(train, test))


def _not_digits(folder: Path) -> InputError:
    names = sorted({source.name for source in _find(folder)}) if folder.is_dir() else []
    held = f"which holds {', '.join(names)}" if names else "where no set was found"
    return InputError(
        f"digits ships with the library and is not read from {folder}, {held}: "
        "name the set with --dataset, or leave out --data"
    )


def _idx_file(place: Path, stem: str) -> Path:
    kind = "idx3-ubyte" if stem.endswith("images") else "idx1-ubyte"
    spellings = [place / f"{stem}{dot}{kind}{suffix}" for dot in "-." for suffix in ("", ".gz")]
    return next((file for file in spellings if file.is_file()), spellings[0])


def _image_files(split: Path) -> list[Path]:
    return sorted(file for file in split.glob("*/*") if file.suffix.lower() in IMAGE_SUFFIXES)


def _nothing_in(folder: Path) -> InputError:
    pickles = [name for name in _PICKLES if (folder / name).exists()]
    if pickles or folder.name in _PICKLES:
        return InputError(
            f"{folder / (pickles[0] if pickles else '')} holds Python pickles, which can run any code once opened and "
            "are never read: take the binary version from https://www.cs.toronto.edu/~kriz/cifar.html, "
            "or run 'fedfomo data get cifar10' (or cifar100)"
        )
    for archive in sorted(folder.glob("*.tar.gz")):
        return InputError(f"{archive} is still packed: unpack it there with 'tar -xzf {archive.name}'")
    return InputError(
        f"{folder} holds no data set that can be read: put there MNIST's idx files (plain or .gz), CIFAR's binary "
        "version, a .npz with x_train, y_train, x_test and y_test, or images as train/CLASS/*.png and test/CLASS/*.png"
    )


def _read(source: _Source, folder: Path) -> DataSet:
    train, test = (_examples(part) for part in source.decode())
    if not len(train) or not len(test):
        raise InputError(f"{source.files[0]} leaves the training or the test part empty: give images for both")
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        raise InputError(
            f"{source.files[0]} has training images of shape {tuple(train.inputs.shape[1:])} but test images of "
            f"{tuple(test.inputs.shape[1:])}: bring them to one shape"
        )
    num_classes = int(torch.cat([train.labels, test.labels]).max()) + 1
    data = DataSet(folder.resolve().name, train, test, num_classes, fingerprint(train, test))
    digests = _digests(data)
    known = next((name for name, published in KNOWN_SETS.items() if published == digests), None)
    # Files may claim to be a known set; only their contents decide.
    name = known or (source.name if source.name not in KNOWN_SETS else data.name)
    return replace(data, name=name)


def _examples(part: Part) -> Examples:
    inputs = np.ascontiguousarray(part.pixels.transpose(0, 3, 1, 2), dtype=np.float32)
    if part.pixels.dtype == np.uint8:
        inputs /= 255
    return Examples(torch.from_numpy(inputs), torch.from_numpy(part.labels))


def _digests(data: DataSet) -> dict[str, str]:
    digests: dict[str, str] = {}
    for part, examples in (("training", data.train), ("test", data.test)):
        pixels = (examples.inputs * 255).round_().to(torch.uint8).permute(0, 2, 3, 1)
        digests[f"{part} images"] = hashlib.sha256(pixels.contiguous().numpy().data).hexdigest()
        digests[f"{part} labels"] = hashlib.sha256(examples.labels.to(torch.uint8).numpy().data).hexdigest()
    return digests
