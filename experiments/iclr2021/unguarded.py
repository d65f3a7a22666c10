"""What finished CNN cells would have ended at if diverged models had been kept: no run is computed again.

    python -m experiments.iclr2021.unguarded --data FOLDER

Up to the first model that is no number, a run that keeps it and a run that refuses it are the same; from there on, the
first can only answer class 0. So a finished cell that counts its refusals tells where it would have ended.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean

import tyro

from experiments.iclr2021.authors_protocol import with_diverged_kept
from experiments.iclr2021.features.store import Store
from experiments.iclr2021.paper_tables import FEDAVG, LATENT_5, LOCAL, NEW_5, NEW_OOD_5, OOD_5
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import SHOWN, Cell
from fedfomo.cli.main import run_and_exit
from fedfomo.cli.terminal import console
from fedfomo.datasets.readers import load_data
from fedfomo.datasets.scenarios import partition_data

NAME = "unguarded"
CASES = {
    NEW_5: "D = 5",
    NEW_OOD_5: "foreign targets, D = 5",
    LATENT_5: "D = 5, older groups",
    OOD_5: "foreign targets, D = 5, older groups",
}
"""The settings with five distributions, and what pages call them."""
METHODS = (LOCAL, FEDAVG)


@dataclass(frozen=True)
class UnguardedConfig:
    """Say what Local Training and FedAvg would have ended at with five distributions, had diverged models been kept."""

    data: Path
    """Folder with cifar10.npz, for the labels of clients' test data."""
    results: Path = Path("results")


def unguarded(arguments: list[str]) -> None:
    """Write a line for every finished cell."""
    config = tyro.cli(UnguardedConfig, args=arguments, prog="python -m experiments.iclr2021.unguarded")
    results, store = Results(config.results), Store(config.results / "authors")
    for scale in SHOWN:
        for case, variant in product(CASES, METHODS):
            for seed, result in results.all_seeds(Cell(case, variant, scale)).items():
                key = {"case": case.name, "scale": scale, "method": variant.name, "seed": seed}
                if any(key.items() <= line.items() for line in store.lines(NAME)):
                    continue
                setting = Cell(case, variant, scale, seed).config(config.data).setting
                data = load_data(setting.dataset, setting.data)
                labels = data.test.labels.numpy()
                clients = partition_data(setting.scenario, data, seed).clients
                class_0 = {number: float((labels[client.test] == 0).mean()) for number, client in enumerate(clients)}
                accuracies = dict(enumerate(result.accuracies()))
                diverged = [int(client) for client, number in (result.content["refusals"] or {}).items() if number]
                kept = with_diverged_kept(accuracies, diverged, class_0, variant.method)
                store.append(
                    NAME,
                    {
                        **key,
                        "diverged": len(diverged),
                        "guarded": round(result.mean(), 2),
                        "unguarded": round(100 * fmean(kept.values()), 2),
                    },
                )
                console.print(f"{key}: done", soft_wrap=True)


if __name__ == "__main__":
    run_and_exit(unguarded)
