"""Images in folders that are named after their classes, read when a batch needs them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedfomo.errors import InputError, listed, require

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp")


class ImageFolder(Dataset[Any]):
    """The images of one folder: CLASS/NAME.png and the like, as 3 × height × width with values from 0 to 1."""

    def __init__(self, folder: Path | str, classes: Sequence[str] | None = None, size: int | None = None) -> None:
        self.folder = Path(folder)
        own = classes_in([self.folder])
        require(bool(own), f"{self.folder} holds no images: it takes a folder for each class, and images in it")
        self.classes = tuple(own if classes is None else classes)
        strange = [name for name in own if name not in self.classes]
        way_out = f"the classes are {listed(self.classes)}"
        require(not strange, f"{self.folder} holds the classes {listed(strange)}, which are none: {way_out}")
        require(size is None or size > 0, f"the size of images must be above 0, not {size}")
        self.size = size
        found = [(path, label) for label, name in enumerate(self.classes) for path in _images(self.folder / name)]
        self.paths = [str(path.relative_to(self.folder)) for path, _ in found]
        self.targets = torch.tensor([label for _, label in found], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._image(self.folder / self.paths[index]), int(self.targets[index])

    def __repr__(self) -> str:
        return f"ImageFolder({len(self)} images)"

    def _image(self, path: Path) -> Tensor:
        image = _pillow()
        try:
            with image.open(path) as opened:
                pixels = opened.convert("RGB")
                if self.size is not None and pixels.size != (self.size, self.size):
                    pixels = pixels.resize((self.size, self.size), image.Resampling.BILINEAR)
                values = np.asarray(pixels)
        except Exception as error:  # whatever a damaged file makes its reader raise
            raise InputError(f"{path} cannot be read ({type(error).__name__}: {error})") from error
        return torch.from_numpy(values.copy()).permute(2, 0, 1).float().div_(255)


def classes_in(folders: Iterable[Path]) -> list[str]:
    """Return the names of all class folders, sorted: the same numbers at every site that knows them all."""
    return sorted({place.name for folder in folders for place in folder.iterdir() if place.is_dir() and _images(place)})


def _images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    paths = (path for path in folder.iterdir() if path.suffix.lower() in IMAGES and not path.name.startswith("."))
    return sorted(paths)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise InputError("images need Pillow: pip install 'fedfomo[images]'") from None
    return Image
