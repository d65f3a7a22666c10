"""Your own data in files: a folder for each site, a file for each part."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from fedfomo.core.archives import read_npz, read_tensors
from fedfomo.core.data import Examples
from fedfomo.errors import InputError, listed, require

SUFFIXES = (".npz", ".safetensors", ".csv")
PARTS = (("train", "validation", "test"), ("train", "target"))
LAYOUT = (
    "a folder for each site, in it train and target, or train, validation and test, each as .npz or .safetensors with"
    " `inputs` and `labels`, or as .csv with a heading and a column `label`"
)
MOST_CLASSES = 2**31

Labels = Literal["classes", "numbers"]
"""What the labels of .csv files are: classes, which are whole numbers, or any numbers, to be predicted as such."""


def load_sites(folder: Path | str, labels: Labels = "classes") -> dict[str, tuple[Examples, ...]]:
    """Read every site's parts from a folder; the folder's own folders are the sites.

    `labels` says what the column `label` of .csv files holds: classes, or numbers to be predicted.
    """
    folder = Path(folder)
    require(labels in get_args(Labels), f"labels are {' or '.join(get_args(Labels))}, not {labels!r}")
    require(folder.is_dir(), f"there is no folder {folder}")
    places = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
    require(bool(places), f"{folder} holds no sites: it takes {LAYOUT}")
    files = {place.name: _files_of(place) for place in places}
    tables = _Tables(labels)
    return {site: tuple(_read_part(path, tables) for path in paths) for site, paths in files.items()}


def load_site(folder: Path | str, labels: Labels = "classes") -> tuple[Examples, ...]:
    """Read the parts of one site from its folder."""
    folder = Path(folder)
    require(folder.is_dir(), f"there is no folder {folder}")
    tables = _Tables(labels)
    return tuple(_read_part(path, tables) for path in _files_of(folder))


def _files_of(place: Path) -> list[Path]:
    found: dict[str, Path] = {}
    for path in sorted(place.iterdir()):
        if path.suffix not in SUFFIXES or path.name.startswith("."):
            continue
        if path.stem in found:
            raise InputError(f"{place} holds both {found[path.stem].name} and {path.name}: keep one of them")
        found[path.stem] = path
    held = ", ".join(found) or "nothing to read"
    for names in PARTS:
        if set(names) <= set(found):
            ignored = [path.name for name, path in found.items() if name not in names]
            way_out = f"move {', '.join(ignored)} elsewhere, or name the parts otherwise"
            require(not ignored, f"{place} holds {held}, more than {', '.join(names)}: {way_out}; a site is {LAYOUT}")
            return [found[name] for name in names]
    raise InputError(f"{place} holds {held}; a site is {LAYOUT}")


def _read_part(path: Path, tables: _Tables) -> Examples:
    try:
        if path.suffix == ".csv":
            return tables.read(path)
        if path.suffix == ".npz":
            return _examples({name: torch.from_numpy(array) for name, array in read_npz(path).items()}, path)
        return _examples(read_tensors(path), path)
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader raise
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def _examples(tensors: dict[str, torch.Tensor], path: Path) -> Examples:
    require({"inputs", "labels"} <= set(tensors), f"{path} holds {', '.join(tensors)}; it takes inputs and labels")
    inputs = tensors["inputs"]
    return Examples(inputs.float() if inputs.is_floating_point() else inputs, tensors["labels"])


class _Tables:
    """Reads .csv files, which all have the same columns; those of the first file say in which order they go."""

    def __init__(self, labels: Labels) -> None:
        self._labels: Labels = labels
        self._first: tuple[Path, list[str]] | None = None

    def read(self, path: Path) -> Examples:
        """Read a file, whatever the order of its own columns."""
        heading, values = _numbers(path)
        if self._first is None:
            self._first = path, heading
        first, columns = self._first
        if set(columns) != set(heading):
            raise InputError(
                f"{path} and {first} have different columns ({_only(path, heading, columns)}; "
                f"{_only(first, columns, heading)}): all parts of all sites take the same"
            )
        place = {name: number for number, name in enumerate(heading)}
        inputs = values[:, [place[name] for name in columns if name != "label"]]
        return Examples(torch.from_numpy(inputs).float(), self._checked(values[:, place["label"]], path))

    def _checked(self, labels: NDArray[np.float64], path: Path) -> torch.Tensor:
        for line in _lines(~np.isfinite(labels)):
            raise InputError(f"{path}, line {line}: the label is not finite: give a number, or leave out the line")
        tensor = torch.from_numpy(labels)
        if self._labels == "numbers":
            return tensor.float()
        for line in _lines((labels != np.round(labels)) | (labels < 0) | (labels > MOST_CLASSES)):
            raise InputError(
                f"{path}, line {line}: label {labels[line - 2]:g} is no class: classes are whole numbers from 0; where"
                ' numbers are to be predicted, say so with labels="numbers" (of fedfomo check, --labels numbers)'
            )
        return tensor.long()


def _lines(is_odd: NDArray[np.bool_]) -> list[int]:
    return [int(row) + 2 for row in np.flatnonzero(is_odd)]  # the heading is line 1


def _numbers(path: Path) -> tuple[list[str], NDArray[np.float64]]:
    with path.open(newline="", encoding="utf-8-sig") as file:  # Excel begins a file with a mark
        lines = list(csv.reader(file))
    require(bool(lines), f"{path} is empty: it takes a heading with a column label, and a line for each example")
    heading, rows = [name.strip() for name in lines[0]], lines[1:]
    require("label" in heading, f"{path} has the columns {', '.join(heading)}; one of them must be called label")
    twice = [name for name, number in Counter(heading).items() if number > 1]
    require(not twice, f"{path} has several columns called {_listed(twice)}: give each a name of its own")
    for number, row in enumerate(rows, start=2):
        require(len(row) == len(heading), f"{path}, line {number}: {len(row)} values under {len(heading)} headings")
    return heading, np.array(rows, dtype=np.float64).reshape(len(rows), len(heading))


def _only(path: Path, own: Sequence[str], others: Sequence[str]) -> str:
    return f"only in {path.parent.name}/{path.name}: {_listed([name for name in own if name not in others])}"


def _listed(names: Sequence[str]) -> str:
    return listed([f"'{name}'" for name in names]) or "none"
