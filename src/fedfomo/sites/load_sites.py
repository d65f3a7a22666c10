"""Your own data in files: a folder for each site, in it a file or a folder for each part; or in DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from fedfomo.core.archives import read_npz, read_tensors
from fedfomo.core.data import Examples
from fedfomo.core.lazy_data import LazyExamples
from fedfomo.errors import InputError, listed, require
from fedfomo.sites.argument_names import argument
from fedfomo.sites.image_folders import ImageFolder, classes_in
from fedfomo.sites.table_encoding import Labels, TableEncoding
from fedfomo.sites.table_statistics import TableStatistics, require_columns, require_few_words, require_one_kind
from fedfomo.sites.tables import Table, is_frame, read_table, table_of_frame

TABLES = (".csv", ".parquet")
SUFFIXES = (".npz", ".safetensors", *TABLES)
PARTS = (("train", "validation", "test"), ("train", "target"))
NAMES = frozenset(name for names in PARTS for name in names)
SITE = (
    "train and target, or train, validation and test, each as .npz or .safetensors with `inputs` and `labels`, as .csv"
    " or .parquet with a column `label`, or as a folder with a folder of images for each class"
)
LAYOUT = f"a folder for each site, in it {SITE}"


class Sites(dict[str, tuple[Any, ...]]):
    """Every site's parts by its name, and how they were encoded."""

    encoding: TableEncoding | None = None  # of tables
    classes: tuple[str, ...] = ()  # words or folder names of the labels, in the order of their numbers


def load_sites(
    source: Path | str | Mapping[str, Sequence[Any]],
    labels: Labels = "classes",
    *,
    label: str = "label",
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
    standardise: bool = False,
    encoding: TableEncoding | Path | str | None = None,
    image_size: int | None = None,
    classes: Sequence[str] | None = None,
) -> Sites:
    """Read every site's parts from a folder, whose own folders are the sites, or from DataFrames.

    Args:
        source: The folder, in which images stay in their files; or by site (train, target) or (train, validation,
            test), each a DataFrame.
        labels: What the labels of tables are: classes, which are words or whole numbers, or numbers to be predicted.
        label: The column that holds them.
        categories: Columns that hold words, even where these look like numbers.
        drop: Columns of tables to be left out.
        standardise: Whether columns of numbers are brought to mean 0 and deviation 1 over all sites' training data.
        encoding: How tables are encoded, or the file that says it; by default as fits the sites that are here.
        image_size: Side to which images are scaled, for images of different sizes.
        classes: Names of the class folders of images, in the order of their numbers; by default those of all sites,
            sorted.
    """
    if isinstance(source, Mapping):
        return _encoded(_tables_of(source), labels, label, categories, drop, standardise, encoding)
    files = {place.name: _files_of(place) for place in _places_in(Path(source))}
    known = classes or classes_in(path for paths in files.values() for path in paths if path.is_dir())
    found = {site: _parts_in(paths, known, image_size) for site, paths in files.items()}
    sites = _encoded(found, labels, label, categories, drop, standardise, encoding)
    sites.classes = sites.classes or tuple(known)
    return sites


load_tables = load_sites
"""The same, by the name that goes with DataFrames."""


def encode_frames(sites: Mapping[str, Any], labels: Labels) -> Mapping[str, Any]:
    """Return sites whose DataFrames are read as `load_sites` reads them, with a column `label`; others as they are."""
    is_given = isinstance(sites, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
    has_frames = is_given and any(
        isinstance(parts, tuple | list) and any(map(is_frame, parts)) for parts in sites.values()
    )
    return load_sites(sites, labels) if has_frames else sites


def site_statistics(folder: Path | str, *, categories: Sequence[str] = (), drop: Sequence[str] = ()) -> TableStatistics:
    """Measure the tables of one site's own folder: what it shares so that all sites encode and scale alike.

    The words of every column of words are part of it. Columns in which nearly every word is another one, such as names
    of persons, are refused: `drop` leaves them out, and `categories` lets their words be told.
    """
    tables = [_without(_table(path), drop) for path in _files_of(Path(folder))]
    require_one_kind(tables, categories)
    found = TableStatistics.of(*tables, categories=categories)
    require_few_words(found, categories)
    return found


def load_site(
    folder: Path | str,
    labels: Labels = "classes",
    *,
    encoding: TableEncoding | Path | str | None = None,
    label: str = "label",
    drop: Sequence[str] = (),
    image_size: int | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[Any, ...]:
    """Read the parts of one site from its own folder.

    The arguments are those of `load_sites`. What the other sites hold is not known here. So tables with words or
    missing values take `encoding`, which follows from the statistics of all sites, and folders of images take
    `classes`, the same at all sites.
    """
    folder = Path(folder)
    require(folder.is_dir(), f"there is no folder {folder}")
    paths = _files_of(folder)
    if classes is None and (own := classes_in(path for path in paths if path.is_dir())):
        raise InputError(
            f"{folder} holds images of {listed(own)}, which other sites may number otherwise: give"
            f" {argument('classes')} with the names of all sites' classes, in one order for all"
        )
    found = {folder.name: _parts_in(paths, classes or (), image_size)}
    sites = _encoded(found, labels, label, (), drop, standardise=False, encoding=encoding)
    if encoding is None and sites.encoding is not None:
        _require_plain(sites.encoding, folder)
    return sites[folder.name]


def _require_plain(how: TableEncoding, folder: Path) -> None:
    """Refuse tables that each site alone would turn into other numbers."""
    of_words = [*([how.label] if how.classes else []), *how.words]
    for names, what in ((of_words, "words"), ([*how.fill], "missing values")):
        columns = listed([f"'{name}'" for name in names])
        require(
            not names,
            f"{folder} holds {what} in {columns}, which other sites may encode otherwise: give {argument('encoding')}"
            " with the encoding of all sites, or the file that TableEncoding.write made of it",
        )


def _places_in(folder: Path) -> list[Path]:
    require(folder.is_dir(), f"there is no folder {folder}")
    places = sorted(place for place in folder.iterdir() if place.is_dir() and not place.name.startswith("."))
    is_site = any(path.stem == "train" for path in folder.iterdir())
    require(not is_site, f"{folder} is the folder of one site: give the folder above it, which holds one for each site")
    require(bool(places), f"{folder} holds no sites: it takes {LAYOUT}")
    return places


def _tables_of(frames: Mapping[str, Sequence[Any]]) -> dict[str, tuple[Table, ...]]:
    found: dict[str, tuple[Table, ...]] = {}
    for site, parts in frames.items():
        names = next((names for names in PARTS if len(names) == len(parts)), None)
        if names is None or not all(map(is_frame, parts)):
            raise InputError(f"site '{site}': give (train, target) or (train, validation, test), each a DataFrame")
        found[site] = tuple(table_of_frame(part, f"{site}/{name}") for name, part in zip(names, parts, strict=True))
    return found


def _parts_in(paths: Sequence[Path], classes: Sequence[str], image_size: int | None) -> tuple[Examples | Table, ...]:
    known = classes or classes_in(path for path in paths if path.is_dir())
    return tuple(
        LazyExamples(ImageFolder(path, known, image_size)) if path.is_dir() else _read_file(path) for path in paths
    )


def _encoded(
    found: Mapping[str, tuple[Examples | Table, ...]],
    labels: Labels,
    label: str,
    categories: Sequence[str],
    drop: Sequence[str],
    standardise: bool,
    encoding: TableEncoding | Path | str | None,
) -> Sites:
    """Turn all tables into examples, in one encoding."""
    require(labels in get_args(Labels), f"labels are {' or '.join(get_args(Labels))}, not {labels!r}")
    tables = {
        site: [_without(part, drop) for part in parts if isinstance(part, Table)] for site, parts in found.items()
    }
    if not any(tables.values()):
        return Sites(found)
    if encoding is None:
        how = _fitting([own for own in tables.values() if own], labels, label, categories, standardise)
    else:
        how = encoding if isinstance(encoding, TableEncoding) else TableEncoding.read(encoding)
    sites = Sites(
        {
            site: tuple(how.encode(_without(part, drop)) if isinstance(part, Table) else part for part in parts)
            for site, parts in found.items()
        }
    )
    sites.encoding, sites.classes = how, how.classes
    return sites


def _fitting(
    sites: Sequence[Sequence[Table]], labels: Labels, label: str, categories: Sequence[str], standardise: bool
) -> TableEncoding:
    """Find the encoding of tables that are all here."""
    together = [table for own in sites for table in own]
    for table in together:
        held = f"{table.source} has the columns {', '.join(table.columns)}"
        way_out = f"one of them must be called {label}, or name another with {argument('label')}"
        require(label in table.columns, f"{held}; {way_out}")
        require_columns(table, tuple(together[0].columns), together[0].source)
    require_one_kind(together, categories)
    statistics = [TableStatistics.of(*own, categories=categories) for own in sites]
    return TableEncoding.of(statistics, label, labels, standardise=standardise)


def _without(table: Table, drop: Sequence[str]) -> Table:
    return Table(table.source, {n: c for n, c in table.columns.items() if n not in drop}, table.lines)


def _files_of(place: Path) -> list[Path]:
    found: dict[str, Path] = {}
    for path in sorted(place.iterdir()):
        is_images = path.is_dir() and path.name in NAMES
        if path.name.startswith(".") or not (is_images or path.suffix in SUFFIXES):
            continue
        if path.stem in found:
            raise InputError(f"{place} holds both {found[path.stem].name} and {path.name}: keep one of them")
        found[path.stem] = path
    held = ", ".join(found) or "nothing to read"
    for names in PARTS:
        if set(names) <= set(found):
            ignored = [path.name for name, path in found.items() if name not in names]
            way_out = f"move {', '.join(ignored)} elsewhere, or name the parts otherwise"
            require(not ignored, f"{place} holds {held}, more than {', '.join(names)}: {way_out}; a site has {SITE}")
            return [found[name] for name in names]
    raise InputError(f"{place} holds {held}; a site has {SITE}")


def _table(path: Path) -> Table:
    require(path.suffix in TABLES, f"{path} is no table: only these are encoded")
    return _reading(path, lambda: read_table(path))


def _read_file(path: Path) -> Examples | Table:
    if path.suffix in TABLES:
        return _table(path)
    if path.suffix == ".npz":
        return _reading(path, lambda: _examples({n: torch.from_numpy(a) for n, a in read_npz(path).items()}, path))
    return _reading(path, lambda: _examples(read_tensors(path), path))


def _reading(path: Path, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except InputError:
        raise
    except Exception as error:  # whatever a damaged file makes its reader raise
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error})") from error


def _examples(tensors: dict[str, torch.Tensor], path: Path) -> Examples:
    require({"inputs", "labels"} <= set(tensors), f"{path} holds {', '.join(tensors)}; it takes inputs and labels")
    inputs = tensors["inputs"]
    return Examples(inputs.float() if inputs.is_floating_point() else inputs, tensors["labels"])
