"""Check forms of FedFomo+ on images with the authors' CNN, by examples that nobody trains on.

    python -m experiments.fedfomo_plus.cnn --data FOLDER --regimes "D = 2" --variants "FedFomo+" "one start for all"

FOLDER holds cifar10.npz. Clients hold a fifth of their data, with the paper's rounds and epochs; scores are as in the
search, after every fourth round and at the end. A run takes three to four minutes of one core, and leaves one line of
`results/fedfomo_plus/cnn.jsonl` for every reading.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from experiments.fedfomo_plus.search import NAMES, REGIMES, held_out_of, keep, setting_of
from experiments.fedfomo_plus.variants import BESIDE, VARIANTS
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.config_io import build
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.simulate import simulate

FILE = Path("results/fedfomo_plus/cnn.jsonl")
EVERY = 4


class Keeps(Callback):
    """Keeps a line for every reading."""

    def __init__(self, regime: str, seed: int, variant: str) -> None:
        self.about = {"regime": regime, "seed": seed, "variant": variant}

    def reading(self, rounds: int, accuracies: list[float]) -> None:
        """Append one."""
        keep({**self.about, "round": rounds, "accuracy": round(100 * fmean(accuracies), 2)}, FILE)

    def round_done(self, finished: FinishedRound) -> None:
        """Keep a round that was scored."""
        if (finished.round + 1) % EVERY == 0:
            self.reading(finished.round + 1, [score.metric for score in finished.after_update.values()])


def images(regime: str, data: Path) -> ExperimentConfig:
    """Return a regime's setting on images instead of features."""
    about = setting_of(REGIMES[regime], data)
    values = {"dataset": "cifar10", "data": str(data), "rounds": about.rounds, "workers": 0}
    return replace(build(ExperimentConfig, values), scenario=about.scenario)


def main() -> None:
    """Compute what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10.npz")
    parser.add_argument("--regimes", nargs="+", default=["D = 2", "D = 5", "foreign"], choices=list(NAMES))
    parser.add_argument("--variants", nargs="+", default=["FedFomo+"], choices=[*VARIANTS, *BESIDE])
    parser.add_argument("--seed", type=int, default=100)
    arguments = parser.parse_args()
    for regime in arguments.regimes:
        problem, simulation = held_out_of(images(regime, arguments.data), arguments.seed)
        for variant in arguments.variants:
            keeps = Keeps(regime, arguments.seed, variant)
            algorithm = {**VARIANTS, **BESIDE}[variant]
            result = simulate(problem, algorithm, replace(simulation, evaluate_every=EVERY), callback=keeps)
            keeps.reading(simulation.rounds + 1, [score.metric for score in result.after_update.values()])


if __name__ == "__main__":
    main()
