"""Which run of a comparison is meant."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedfomo.errors import InputError, require, unknown
from fedfomo.runs.config import CompareConfig, label_of
from fedfomo.runs.config_io import load_toml, read_toml
from fedfomo.runs.own_sites import is_of_sites, read_sites_config
from fedfomo.runs.run import read_config, runs_of

USUAL_METHOD = "fedfomo"


def comparison_in(folder: Path) -> CompareConfig | None:
    """Read the configuration of a comparison; None: the folder is that of a single run."""
    require(folder.is_dir(), f"there is no run folder {folder}")
    path = folder / "config.toml"
    require(path.exists(), f"{folder} is not the folder of a run: it has no config.toml")
    return read_toml(path, CompareConfig) if "methods" in load_toml(path) else None


@dataclass(frozen=True)
class Parts:
    """The runs that were asked for together: a folder for each method and seed."""

    methods: list[str]
    seeds: list[int]
    usual: str  # the method that is meant where none is named


def parts_of(folder: Path) -> Parts | None:
    """Return of which runs a folder is, begun or not; None: it is that of a single run."""
    if not is_of_sites(folder):
        comparison = comparison_in(folder)
        if comparison is None:
            return None
        methods = list(dict.fromkeys(label_of(planned.method) for planned in runs_of(comparison)))
        return Parts(methods, list(comparison.seeds), USUAL_METHOD)
    table = load_toml(folder / "config.toml")
    return Parts(table["methods"], table["seeds"], table["methods"][0]) if "methods" in table else None


def is_part(run: Path) -> bool:
    """Tell whether a run is one of several that were asked for together."""
    return (run.parent / "config.toml").exists() and parts_of(run.parent) is not None


def find_run(folder: Path, method: str | None = None, seed: int | None = None) -> Path:
    """Return the run that is meant, begun or not: the folder itself, or one of a comparison's."""
    require(folder.is_dir(), f"there is no run folder {folder}")
    method = method and label_of(method)
    parts = parts_of(folder)
    if parts is None:
        config = read_sites_config(folder) if is_of_sites(folder) else read_config(folder)
        for flag, asked, there in (("method", method, label_of(config.method)), ("seed", seed, config.seed)):
            is_meant = asked is None or asked == there
            require(is_meant, f"{folder} is a single run, with {flag} {there}: leave out --{flag} {asked}")
        return folder
    if method is None and parts.usual not in parts.methods:
        known = ", ".join(parts.methods)
        raise InputError(f"{folder} has no run of {parts.usual}: choose with --method one of {known}")
    method = method or parts.usual
    if method not in parts.methods:
        raise unknown("method", method, parts.methods, f"in {folder}")
    seed = parts.seeds[0] if seed is None else seed
    seeds = ", ".join(map(str, parts.seeds))
    require(seed in parts.seeds, f"{folder} has no runs with seed {seed}: choose with --seed one of {seeds}")
    return folder / f"{method}-seed-{seed}"


def has_begun(run: Path) -> bool:
    """Tell whether a run has written down on what it runs, without which nothing can be said of it."""
    return (run / "environment.json").exists()


def choice_in_words(run: Path) -> str:
    """Say which run of a comparison was chosen."""
    method, _, seed = run.name.rpartition("-seed-")
    return f"of this comparison: {method} with seed {seed}; --method and --seed choose another"


def require_begun(folder: Path, run: Path) -> None:
    """Refuse a run of which nothing is there yet, and say which others there are."""
    others = sorted(path.parent.name for path in folder.glob("*-seed-*/environment.json"))
    begun = f"; begun are {', '.join(others)}" if others else ""
    require(has_begun(run), f"{run} has not begun yet: try again, or give --watch{begun}")
