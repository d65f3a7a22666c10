"""The command that looks at a practitioner's own data before a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.markup import escape

from fedfomo.cli.site_files import FileFlags
from fedfomo.cli.tables import bars
from fedfomo.cli.terminal import console, parse, warn
from fedfomo.core.user_code import find_module, load_user_module
from fedfomo.errors import InputError, require

if TYPE_CHECKING:
    from fedfomo.sites.checks import SiteSummary

OF_MODULES = ("make_model", "loss", "metric", "metrics", "primary", "standardise", "validation_fraction")


@dataclass(frozen=True)
class CheckConfig:
    """Validate your own data before a run, and print warnings: counts, label mixes, duplicates, and the model.

    The source is a folder with one folder per site, in it train and target, or train, validation and test. Each is a
    file (.npz, .safetensors, .csv or .parquet), or a folder with a folder of images for each class. Or the source is
    a Python file or module with `sites` and, optionally, `make_model`, `loss`, `metric`, `metrics`, `primary`, the
    options `standardise` and `validation_fraction`, and `trainer`: they mean what they mean in `fedfomo.federate`.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER|FILE.py|MODULE")]
    """The folder, file or module."""
    validation_fraction: float | None = None
    """Fraction of a target that is used for validation, the rest for testing; by default what the file says,
    or one half."""
    files: Annotated[FileFlags, tyro.conf.arg(name="")] = field(default_factory=FileFlags)
    categories: tuple[str, ...] = ()
    """Columns of tables that hold words, even where these look like numbers."""


def check(arguments: list[str]) -> None:
    """Check sites, and print warnings and faults."""
    config = parse("check", CheckConfig, arguments)
    from fedfomo.sites.checks import check_sites

    path = Path(config.source)
    is_known = not path.is_file() or path.suffix == ".py"
    require(is_known, f"{path} is neither a folder of sites nor a Python file: give one of these")
    given = _from_folder(path, config) if path.is_dir() else _from_module(config)
    if config.validation_fraction is not None:
        given["validation_fraction"] = config.validation_fraction
    found = check_sites(**given)
    show_sites(found.sites)
    for note in found.warnings:
        warn(note)
    for fault in found.faults:
        console.print("[red]fault:[/red]", escape(fault), soft_wrap=True)
    if found.faults:
        raise InputError(f"{len(found.faults)} faults must be put right before these sites can federate")
    console.print(f"{len(found.sites)} sites can federate")


def show_sites(cards: Sequence[SiteSummary]) -> None:
    """Show what each site holds."""
    width = max((len(card.name) for card in cards), default=len("site"))
    console.print(f"{'site':<{width}}   train   valid.    test  labels: trains on, aims at", style="bold")
    for card in cards:
        counts = f"{card.name:<{width}} {card.train:>7} {card.validation:>8} {card.test:>7}  "
        console.print(counts + _mixes(card), markup=False, soft_wrap=True)


def _from_folder(path: Path, config: CheckConfig) -> dict[str, Any]:
    from fedfomo.sites.argument_names import as_flags
    from fedfomo.sites.load_sites import load_sites

    with as_flags():
        return {"sites": load_sites(path, categories=config.categories, **vars(config.files))}


def _from_module(config: CheckConfig) -> dict[str, Any]:
    name = config.source
    module: Any = load_user_module(Path(name)) if name.endswith(".py") else find_module(name)
    require(hasattr(module, "sites"), f"{name} defines no sites: it takes sites = {{name: (train, target)}}")
    is_left = config.files == FileFlags() and not config.categories
    require(is_left, f"{name} reads its sites by itself: leave out the flags that say how files are read")
    from fedfomo.core.own_loop import as_trainer
    from fedfomo.runs.own_problem import call_with_seed

    if getattr(module, "trainer", None) is not None:
        as_trainer(module.trainer, f"trainer in {name}")
    sites = call_with_seed(module.sites, 0)
    return {"sites": sites, **{word: getattr(module, word) for word in OF_MODULES if hasattr(module, word)}}


def _mixes(card: SiteSummary) -> str:
    if card.train_labels is None or card.target_labels is None:
        return ""
    return f"{bars(card.train_labels)}  {bars(card.target_labels)}"
