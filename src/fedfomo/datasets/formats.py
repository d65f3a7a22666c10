"""The file formats in which image sets are published, each decoded into the same plain arrays."""

import gzip
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedfomo.core.archives import ArchiveError, most_unpacked, read_npz
from fedfomo.errors import InputError, require

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")

_CIFAR_SHAPE = (3, 32, 32)
_NPZ_ARRAYS = ("x_train", "y_train", "x_test", "y_test")
_FETCH_AGAIN = "fetch the file again"
_MOST_PIXELS = 25_000_000  # of one image
_GREY_MODES = ("1", "L", "LA")  # Pillow's names; the next ones are of grey with 16 bits
_DEEP_GREY_MODES = ("I;16", "I;16L", "I;16B", "I;16N")
_DEEP_WHITE = 65535


@dataclass(frozen=True)
class Part:
    """The training or the test part of a set."""

    pixels: NDArray[Any]  # (N, H, W, C), either bytes or float32 in [0, 1]
    labels: NDArray[np.int64]


def decode_idx(images: Path, labels: Path) -> Part:
    """Read a pair of MNIST's idx files, plain or gzipped."""
    pixels, numbers = _idx_array(images, dimensions=3), _idx_array(labels, dimensions=1)
    if len(pixels) != len(numbers):
        raise InputError(
            f"{images} holds {len(pixels)} images but {labels} holds {len(numbers)} labels: fetch both files again"
        )
    return Part(pixels[..., np.newaxis], numbers.astype(np.int64))


def decode_cifar(files: Sequence[Path], label_bytes: int, num_classes: int) -> Part:
    """Read CIFAR's binary batches, whose records are the labels (the last one counts), then the planes of an image."""
    records = np.concatenate([_cifar_records(file, label_bytes, num_classes) for file in files])
    pixels = records[:, label_bytes:].reshape(-1, *_CIFAR_SHAPE).transpose(0, 2, 3, 1)
    return Part(np.ascontiguousarray(pixels), records[:, label_bytes - 1].astype(np.int64))


def decode_npz(file: Path) -> tuple[Part, Part]:
    """Read a NumPy archive of x_train, y_train, x_test and y_test."""
    try:
        arrays = read_npz(file)
    except ArchiveError as error:
        raise InputError(f"{file} is not a whole .npz archive of numbers ({error}): {_FETCH_AGAIN}") from error
    missing = [key for key in _NPZ_ARRAYS if key not in arrays]
    if missing:
        raise InputError(f"{file} lacks {', '.join(missing)}: store all four arrays in it")
    return _npz_part(file, arrays, "train"), _npz_part(file, arrays, "test")


def decode_images(train: Sequence[Path], test: Sequence[Path]) -> tuple[Part, Part]:
    """Read image files that lie in one folder per class; classes are numbered in alphabetical order."""
    classes = sorted({file.parent.name for file in train})
    for file in test:
        if file.parent.name not in classes:
            raise InputError(
                f"class '{file.parent.name}' of {file} has no training image: add some, or remove the class"
            )
    pictures = [_picture(file) for file in (*train, *test)]
    # Bytes stay bytes only if all are.
    if any(picture.dtype != np.uint8 for picture in pictures):
        pictures = [_fractions(picture) for picture in pictures]
    # Grey images stay grey only if all are.
    if any(picture.shape[2] == 3 for picture in pictures):
        pictures = [np.broadcast_to(picture, (*picture.shape[:2], 3)) for picture in pictures]
    for file, picture in zip((*train, *test), pictures, strict=True):
        if picture.shape != pictures[0].shape:
            raise InputError(
                f"{file} is {picture.shape[0]}×{picture.shape[1]} but the first image is "
                f"{pictures[0].shape[0]}×{pictures[0].shape[1]}: bring all images to one size"
            )
    pixels = np.stack(pictures)
    labels = np.array([classes.index(file.parent.name) for file in (*train, *test)], dtype=np.int64)
    split = len(train)
    return Part(pixels[:split], labels[:split]), Part(pixels[split:], labels[split:])


def _idx_array(file: Path, dimensions: int) -> NDArray[np.uint8]:
    content = _content(file)
    start = 4 + 4 * dimensions
    # An idx file begins with two zeros, the code of its number type (8: bytes) and its number of dimensions.
    if len(content) < start or content[:4] != bytes((0, 0, 8, dimensions)):
        raise InputError(
            f"{file} is not an idx file of {dimensions}-dimensional bytes (it begins with "
            f"{content[:4].hex(' ') or 'nothing'}): {_FETCH_AGAIN}"
        )
    shape = tuple(int(size) for size in np.frombuffer(content[4:start], dtype=">u4"))
    expected = start + math.prod(shape)
    if len(content) != expected:
        raise InputError(f"{file} holds {len(content)} bytes instead of {expected}: {_FETCH_AGAIN}")
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _content(file: Path) -> bytes:
    try:
        if file.suffix != ".gz":
            return file.read_bytes()
        most = most_unpacked(file.stat().st_size)
        with gzip.open(file) as packed:
            content = packed.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(f"{file} cannot be read to its end ({error}): {_FETCH_AGAIN}") from error
    require(len(content) <= most, f"{file} unpacks to more than {most:,} bytes: unpack it yourself if that is right")
    return content


def _cifar_records(file: Path, label_bytes: int, num_classes: int) -> NDArray[np.uint8]:
    content = np.frombuffer(_content(file), dtype=np.uint8)
    record = label_bytes + int(np.prod(_CIFAR_SHAPE))
    if not len(content) or len(content) % record:
        raise InputError(
            f"{file} holds {len(content)} bytes, which is no multiple of a record's {record}: {_FETCH_AGAIN}"
        )
    records = content.reshape(-1, record)
    if (highest := records[:, label_bytes - 1].max()) >= num_classes:
        raise InputError(f"{file} holds label {highest}, but there are {num_classes} classes: {_FETCH_AGAIN}")
    return records


def _npz_part(file: Path, arrays: Mapping[str, NDArray[Any]], split: str) -> Part:
    pixels, labels = arrays[f"x_{split}"], arrays[f"y_{split}"]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or (labels < 0).any():
        raise InputError(f"y_{split} of {file} must hold one whole number from 0 per image: store it so")
    where = f"x_{split} of {file}"
    pixels = _unit_or_bytes(_channels_last(pixels, where), where)
    if len(pixels) != len(labels):
        raise InputError(f"{where} holds {len(pixels)} images for {len(labels)} labels: store one label per image")
    return Part(pixels, labels.astype(np.int64))


def _channels_last(pixels: NDArray[Any], where: str) -> NDArray[Any]:
    if pixels.ndim == 3:
        return pixels[..., np.newaxis]
    if pixels.ndim == 4 and pixels.shape[3] in (1, 3):
        return pixels
    if pixels.ndim == 4 and pixels.shape[1] in (1, 3):
        return pixels.transpose(0, 2, 3, 1)
    raise InputError(
        f"{where} has shape {pixels.shape}: store images × height × width, with 1 or 3 channels last if any"
    )


def _unit_or_bytes(pixels: NDArray[Any], where: str) -> NDArray[Any]:
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    if np.issubdtype(pixels.dtype, np.floating):
        # Written so that NaN fails too.
        if pixels.size == 0 or (pixels.min() >= 0 and pixels.max() <= 1):
            return np.ascontiguousarray(pixels, dtype=np.float32)
        raise InputError(f"{where} holds fractions outside 0 to 1: scale them, or store bytes (uint8)")
    raise InputError(f"{where} is of type {pixels.dtype}: store bytes (uint8), or fractions from 0 to 1")


def _fractions(picture: NDArray[Any]) -> NDArray[Any]:
    return picture.astype(np.float32) / np.float32(255) if picture.dtype == np.uint8 else picture


def _picture(file: Path) -> NDArray[Any]:
    try:
        image_module: Any = import_module("PIL.Image")
    except ImportError as error:
        raise InputError("reading image files needs Pillow: pip install 'fedfomo[images]'") from error
    try:
        # Of the many formats that Pillow knows, some start other programs.
        with image_module.open(file, formats=("PNG", "JPEG")) as image:
            width, height = image.size
            require(width * height <= _MOST_PIXELS, f"{file} has {width}×{height} pixels: make it smaller")
            picture = _pixels(image, file)
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader raise
        raise InputError(f"{file} is not a whole image ({error}): {_FETCH_AGAIN}") from error
    return picture.reshape(*picture.shape[:2], -1)


def _pixels(image: Any, file: Path) -> NDArray[Any]:
    """Return bytes, or for 16 bits of grey, which bytes cannot hold, fractions of white."""
    mode: str = image.mode
    # Older Pillows call a PNG's 16 bits I as well; 32 it cannot have.
    if mode in _DEEP_GREY_MODES or (mode == "I" and image.format == "PNG"):
        return np.asarray(image).astype(np.float32) / np.float32(_DEEP_WHITE)
    is_clear = not mode.startswith(("I", "F"))
    require(is_clear, f"{file} has pixels of Pillow's mode {mode}, whose white is unknown: store it with 8 or 16 bits")
    return np.asarray(image.convert("L" if mode in _GREY_MODES else "RGB"), dtype=np.uint8)
