"""The command of the features scale: `python -m experiments.iclr2021.features run --data features`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.box import SIMPLE_HEAD
from rich.table import Table

from experiments.iclr2021.features.cells import CONTENDERS, REGIMES, SEEDS, FeatureCell, queue
from experiments.iclr2021.features.store import Store
from fedfomo.cli.main import run_and_exit
from fedfomo.cli.terminal import console
from fedfomo.errors import require, unknown


@dataclass(frozen=True)
class FeaturesConfig:
    """Compare all methods on random-patch features of CIFAR-10 and CIFAR-100, with up to ten seeds.

    tune tries each method's settings on two seeds that are not reported; run computes the cells with those that
    validation chose; status says what is done. Finished cells are never computed again: give the command once more
    after it was stopped.
    """

    name: Annotated[Literal["tune", "run", "status"], tyro.conf.Positional] = "status"
    data: Path | None = None
    """Folder with cifar10-features.npz and cifar100-features.npz, which random_patches makes."""
    results: Path = Path("results/features")
    """Folder of finished cells."""
    processes: int = 1
    """Cells computed at a time, each by one thread. The result does not depend on it."""
    methods: tuple[str, ...] = tuple(CONTENDERS)
    """Only these methods."""
    regimes: tuple[str, ...] = tuple(REGIMES)
    """Only these regimes."""
    seeds: int = SEEDS
    """Only seeds below this."""

    def __post_init__(self) -> None:
        require(self.processes >= 1, f"processes is {self.processes}: give at least 1")
        for kind, given, known in (("method", self.methods, CONTENDERS), ("regime", self.regimes, REGIMES)):
            for name in given:
                if name not in known:
                    raise unknown(kind, name, known)

    def cells(self) -> list[FeatureCell]:
        """Return the cells that are asked for, in order."""
        return [
            cell
            for cell in queue()
            if cell.seed < self.seeds and cell.regime.name in self.regimes and cell.contender.name in self.methods
        ]


def features(arguments: list[str]) -> None:
    """Tune, run, or say what is done."""
    config = tyro.cli(FeaturesConfig, args=arguments, prog="python -m experiments.iclr2021.features")
    store = Store(config.results)
    if config.name == "status":
        console.print(status(config.cells(), store))
        return
    from experiments.iclr2021.features.compute import run, tune

    require(config.data is not None, "give the folder of the features: --data FOLDER")
    assert config.data is not None  # noqa: S101 - narrows the type
    if config.name == "tune":
        tune(store, config.methods, config.data, config.processes)
    else:
        run(store, config.cells(), config.data, config.processes)


def status(cells: list[FeatureCell], store: Store) -> Table:
    """Say how many cells of each regime are done."""
    table = Table(box=SIMPLE_HEAD, show_edge=False)
    table.add_column("regime")
    table.add_column("done", justify="right")
    table.add_column("missing", justify="right")
    done = Counter(cell.regime.name for cell in cells if store.has(cell))
    for name, number in Counter(cell.regime.name for cell in cells).items():
        table.add_row(name, str(done[name]), str(number - done[name]))
    return table


if __name__ == "__main__":
    run_and_exit(features)
