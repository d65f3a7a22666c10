"""Search for the form of FedFomo+: variants on random-patch features, judged by examples that nobody trains on.

    python -m experiments.fedfomo_plus.search --data FOLDER

FOLDER is the one that `experiments.iclr2021.features.random_patches` fills. Clients hold a part of their data, a fifth
with 15 clients. Each is scored on validation examples of its target that the part leaves out: they are neither trained
on, nor validated on, nor test examples. Seeds are 100 and 101, which are reported nowhere. One line of
`results/fedfomo_plus/search.jsonl` is one run; a run that has a line is not computed again.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from rich.progress import track

from experiments.fedfomo_plus.variants import BESIDE, VARIANTS
from experiments.iclr2021.features.cells import REGIMES as REPORTED
from experiments.iclr2021.features.cells import Regime
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.data import ClientData, Examples
from fedfomo.datasets.scenarios import partition_data
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.setup import prepare
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

FILE = Path("results/fedfomo_plus/search.jsonl")
SEEDS = (100, 101)
RATE = 0.1
PARTS = {15: 0.2, 100: 0.5}
"""Share of their data that clients hold, by their number."""
NAMES = {
    "D = 2": "cifar10-latent-d2",
    "D = 5": "cifar10-latent-d5",
    "foreign": "cifar10-ood-d5",
    "Dirichlet": "cifar10-dirichlet",
    "two classes": "cifar10-pathological-k15",
    "IID": "cifar10-iid",
    "two classes, 100": "cifar10-pathological-k100",
}
REGIMES: Mapping[str, Regime] = {
    **{short: REPORTED[name] for short, name in NAMES.items()},
    "concept 2": Regime("concept-2", "concept shift, two groups", {"scenario": "concept", "distributions": 2}),
    "D = 5, 100": Regime("d5-k100", "D = 5", {"scenario": "latent", "distributions": 5}, clients=100),
}


def setting_of(regime: Regime, data: Path) -> ExperimentConfig:
    """Return the setting of a run of the search."""
    setting = regime.config(data, RATE)
    return replace(setting, scenario=replace(setting.scenario, data_fraction=PARTS[regime.clients]))


@cache
def held_out(regime: str, seed: int, data: Path) -> tuple[FederatedProblem, SimulationConfig]:
    """Return a regime's problem, with validation examples that clients do not hold in place of test examples."""
    return held_out_of(setting_of(REGIMES[regime], data), seed)


def held_out_of(setting: ExperimentConfig, seed: int) -> tuple[FederatedProblem, SimulationConfig]:
    """Return a setting's problem with such examples; clients must hold a part of their data only."""
    prepared = prepare(setting, seed)
    train, part = prepared.data.train, prepared.scenario.partition
    whole = partition_data(replace(setting.scenario, data_fraction=1.0), prepared.data, seed)

    def scored(number: int, held: ClientData) -> ClientData:
        left = np.setdiff1d(whole.clients[number].validation, part.clients[number].validation)
        examples = train.take(torch.from_numpy(left))
        if whole.label_maps:
            labels = whole.labels_at(whole.targets[number], examples.labels.numpy())
            examples = Examples(examples.inputs, torch.from_numpy(labels))
        on_scale = ClientData(held.train, held.validation, examples)
        return replace(held, test=(prepared.scale.applied_to(on_scale) if prepared.scale else on_scale).test)

    clients = tuple(scored(number, held) for number, held in enumerate(prepared.problem.clients))
    simulation = replace(prepared.simulation, workers=0, evaluate_every=prepared.simulation.rounds)
    return replace(prepared.problem, clients=clients), simulation


def score(algorithm: AnyAlgorithm, problem: FederatedProblem, simulation: SimulationConfig) -> float:
    """Return the mean accuracy in % of what clients use in the end."""
    result = simulate(problem, algorithm, simulation)
    return 100 * fmean(one.metric for one in result.after_update.values() if not math.isnan(one.metric))


def lines(file: Path = FILE) -> list[dict[str, Any]]:
    """Return all finished runs."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def keep(line: Mapping[str, Any], file: Path = FILE) -> None:
    """Append a finished run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line, ensure_ascii=False) + "\n")


def main() -> None:
    """Compute the runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10-features.npz")
    parser.add_argument("--regimes", nargs="+", default=list(REGIMES), choices=list(REGIMES))
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS, *BESIDE], choices=[*VARIANTS, *BESIDE])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    arguments = parser.parse_args()
    done = {(line["regime"], line["seed"], line["variant"]) for line in lines()}
    wanted = [
        (regime, seed, name) for seed in arguments.seeds for regime in arguments.regimes for name in arguments.variants
    ]
    algorithms = {**VARIANTS, **BESIDE}
    for regime, seed, name in track([run for run in wanted if run not in done], description="runs"):
        problem, simulation = held_out(regime, seed, arguments.data)
        algorithm = algorithms[name]
        if algorithm.needs_groups and problem.groups is None:
            continue
        began = time.process_time()
        accuracy = score(algorithm, problem, simulation)
        seconds = round(time.process_time() - began, 1)
        keep({"regime": regime, "seed": seed, "variant": name, "accuracy": round(accuracy, 2), "seconds": seconds})


if __name__ == "__main__":
    main()
