"""Your own data in files: a folder for each site, a file for each part."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch

from fedfomo.archives import read_npz, read_tensors
from fedfomo.errors import InputError, require
from fedfomo.examples import Examples

SUFFIXES = (".npz", ".safetensors", ".csv")
LAYOUT = (
    "a folder for each site, in it train and target, or train, validation and test, each as .npz or .safetensors with"
    " `inputs` and `labels`, or as .csv with a heading and a column `label`"
)


def read_sites(folder: Path | str) -> dict[str, tuple[Examples, ...]]:
    """Read every site's parts from a folder; the folder's own folders are the sites."""
    folder = Path(folder)
    require(folder.is_dir(), f"there is no folder {folder}")
    places = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
    require(bool(places), f"{folder} holds no sites: it takes {LAYOUT}")
    return {place.name: _read_site(place) for place in places}


def _read_site(place: Path) -> tuple[Examples, ...]:
    parts = {path.stem: path for path in sorted(place.iterdir()) if path.suffix in SUFFIXES}
    for wanted in (("train", "validation", "test"), ("train", "target")):
        if set(wanted) <= set(parts):
            return tuple(_read_part(parts[name]) for name in wanted)
    raise InputError(f"{place} holds {', '.join(sorted(parts)) or 'nothing to read'}; a site is {LAYOUT}")


def _read_part(path: Path) -> Examples:
    try:
        if path.suffix == ".csv":
            return _read_table(path)
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


def _read_table(path: Path) -> Examples:
    with path.open(newline="") as file:
        heading, *rows = list(csv.reader(file))
    require("label" in heading, f"{path} has the columns {', '.join(heading)}; one of them must be called label")
    column = heading.index("label")
    for number, row in enumerate(rows, start=2):
        require(len(row) == len(heading), f"{path}, line {number}: {len(row)} values under {len(heading)} headings")
    values = np.array(rows, dtype=np.float64).reshape(len(rows), len(heading))
    labels = torch.from_numpy(values[:, column])
    is_class = bool((labels == labels.round()).all())
    inputs = torch.from_numpy(np.delete(values, column, axis=1)).float()
    return Examples(inputs, labels.long() if is_class else labels.float())
