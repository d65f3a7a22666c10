"""The commands that run methods."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from fedfomo.cli.terminal import parse, parse_comparison, parse_run
from fedfomo.errors import InputError
from fedfomo.runs.config import CompareConfig, ExperimentConfig, RunConfig
from fedfomo.runs.config_io import load_toml, read_toml


def run(arguments: list[str]) -> None:
    """Run one method."""
    config = parse_run(arguments)
    from fedfomo.cli.play import play_run

    play_run(config)


def compare(arguments: list[str]) -> None:
    """Run several methods."""
    config = parse_comparison(arguments)
    from fedfomo.cli.play import play_comparison

    play_comparison(config, "compare")


@dataclass(frozen=True)
class DemoConfig:
    """Show local training, FedAvg and FedFomo side by side: 15 clients, 5 hidden groups of handwritten digits."""

    seeds: tuple[int, ...] = (0, 1, 2)
    """One run of every method for each."""
    out: Path | None = None
    """Folder for the runs; it must not exist yet. By default runs/ and the time."""


def demo(arguments: list[str]) -> None:
    """Compare three methods on the embedded data set and show what FedFomo found out."""
    config = parse("demo", DemoConfig, arguments)
    from fedfomo.cli.play import play_comparison
    from fedfomo.cli.report import report

    report([str(play_comparison(CompareConfig(("local", "fedavg", "fedfomo"), {}, config.seeds, config.out), "demo"))])


@dataclass(frozen=True)
class ResumeConfig:
    """Go on with a run or a comparison that was stopped or killed, from its last complete round."""

    folder: Annotated[Path, tyro.conf.Positional]
    """The run's folder."""
    workers: int | None = None
    """Worker processes; by default one per core, 0 for none. The result does not depend on it."""
    data: Path | None = None
    """Folder that holds the data set, if it has moved since."""

    def here(self, setting: ExperimentConfig) -> ExperimentConfig:
        """Return a setting with where it is computed from now on."""
        return replace(setting, workers=self.workers, data=self.data.absolute() if self.data else setting.data)


def resume(arguments: list[str]) -> None:
    """Go on after an interruption."""
    config = parse("resume", ResumeConfig, arguments)
    path = config.folder / "config.toml"
    if not path.exists():
        raise InputError(f"{config.folder} is not the folder of a run: it has no config.toml")
    from fedfomo.cli.play import finish_comparison, finish_run

    if "methods" in load_toml(path):
        comparison = read_toml(path, CompareConfig)
        finish_comparison(config.folder, replace(comparison, setting=config.here(comparison.setting)))
    else:
        single = read_toml(path, RunConfig)
        finish_run(config.folder, replace(single, setting=config.here(single.setting)))
