"""The command that goes on with what was interrupted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from fedfomo.cli.compare import finish_comparison
from fedfomo.cli.run import finish_run
from fedfomo.cli.terminal import parse
from fedfomo.errors import require
from fedfomo.runs.config import CompareConfig, ExperimentConfig, RunConfig
from fedfomo.runs.config_io import build, load_toml


@dataclass(frozen=True)
class ResumeConfig:
    """Continue an interrupted run or comparison from its last complete round."""

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of the run or comparison."""
    workers: int | None = None
    """Worker processes; by default one per core; 0: compute in the main process. Does not change the result."""
    data: Path | None = None
    """Folder with the data set, or the Python file of a problem of your own, if it was moved."""

    def here(self, setting: ExperimentConfig) -> ExperimentConfig:
        """Return a setting with where it is computed from now on."""
        setting = replace(setting, workers=self.workers)
        if self.data is None:
            return setting
        place = self.data.absolute()
        return replace(setting, dataset=str(place)) if setting.is_own else replace(setting, data=place)


def resume(arguments: list[str]) -> None:
    """Go on after an interruption."""
    config = parse("resume", ResumeConfig, arguments)
    path = config.folder / "config.toml"
    require(path.exists(), f"{config.folder} is not the folder of a run: it has no config.toml")
    table = load_toml(path)
    way_on = "the same call of federate with this folder as out= goes on"
    require("sites" not in table, f"{config.folder} is of federate: {way_on}")
    if "methods" in table:
        comparison = build(CompareConfig, table, path)
        finish_comparison(config.folder, replace(comparison, setting=config.here(comparison.setting)))
    else:
        single = build(RunConfig, table, path)
        finish_run(config.folder, replace(single, setting=config.here(single.setting)))
