"""The flags that say how files of sites are read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class FileFlags:
    """How files of sites are read: the arguments that `load_sites` and `load_site` have in common."""

    labels: Literal["classes", "numbers"] = "classes"
    """What labels in tables are: classes, which are words or whole numbers, or numbers to be predicted."""
    label: str = "label"
    """The column of tables that holds labels."""
    drop: tuple[str, ...] = ()
    """Columns of tables to be left out."""
    encoding: Path | None = None
    """File that says how all sites' tables are encoded, made by TableEncoding.write: the column of labels, what these
    are, and all words."""
    image_size: int | None = None
    """Side to which images are scaled, for images of different sizes."""
    classes: tuple[str, ...] | None = None
    """Names of the class folders of images, in the order of their numbers."""
