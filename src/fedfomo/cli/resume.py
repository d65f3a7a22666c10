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
