"""What FedFomo+ costs beside FedFomo and FedAvg with fine-tuning, and what is left of them at equal ε.

    python -m experiments.fedfomo_plus.costs --data FOLDER

Clients are those of the search, five groups on random-patch features, seed 100. One line of
`results/fedfomo_plus/costs.jsonl` is one run; a run that has a line is not computed again. With privacy every client
trains with the same noise, and pays for its looks at validation data: noise on a look grows with the root of their
number, so that all looks of a run together cost every method the same ε.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.fedfomo_plus.search import REGIMES, held_out_of, keep, lines, setting_of
from fedfomo.algorithms import make_algorithm
from fedfomo.privacy.config import Privacy
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.simulate import simulate

FILE = Path("results/fedfomo_plus/costs.jsonl")
SEED = 100
LOOKS = {"fedavg-finetuned": 2, "fedfomo": 7, "fedfomo-plus": 8}
"""Models that a client evaluates on its validation data in a round."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {"fedfomo": {"num_downloads": 5}}
PARTICIPANTS = {"D = 5": 15, "D = 5, 100": 10}
PRIVACY = Privacy(noise=2.0, delta=1e-5)
LOOK_NOISE = 2.0
"""Noise on a look, times the root of their number in a round."""


class Judged(Callback):
    """Counts the models that clients evaluated."""

    def __init__(self) -> None:
        self.models: list[int] = []

    def round_done(self, finished: FinishedRound) -> None:
        """Count those of a round; before the second there is next to nothing to evaluate."""
        if finished.round > 1:
            self.models += [len(losses) for losses in finished.line["judged"].values()]


def measure(method: str, regime: str, data: Path, private: bool) -> dict[str, Any]:
    """Run a method and return its line."""
    setting = setting_of(REGIMES[regime], data)
    if private:
        noise = LOOK_NOISE * math.sqrt(LOOKS[method])
        setting = replace(setting, privacy=replace(PRIVACY, validation_noise=noise))
    problem, simulation = held_out_of(setting, SEED)
    judged = Judged()
    began = time.process_time()
    result = simulate(problem, make_algorithm(method, OPTIONS.get(method, {})), simulation, callback=judged)
    model = 4 * len(problem.initial)
    line: dict[str, Any] = {
        "method": method,
        "regime": regime,
        "private": private,
        "accuracy": round(100 * fmean(one.metric for one in result.after_update.values()), 2),
        "bytes_down": result.traffic.bytes_down,
        "bytes_up": result.traffic.bytes_up,
        "model_bytes": model,
        "client_rounds": PARTICIPANTS[regime] * simulation.rounds,
        "gradients": result.gradients,
        "judged": round(fmean(judged.models), 2),
        "seconds": round(time.process_time() - began, 1),
    }
    if result.spent is not None:
        line["epsilon_training"] = round(max(one.training for one in result.spent.values()), 2)
        line["epsilon_validation"] = round(max(one.validation for one in result.spent.values()), 2)
    return line


def main() -> None:
    """Compute the runs that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with cifar10-features.npz")
    data = parser.parse_args().data
    done = {(line["method"], line["regime"], line["private"]) for line in lines(FILE)}
    for regime, private in (("D = 5", False), ("D = 5, 100", False), ("D = 5", True)):
        for method in LOOKS:
            if (method, regime, private) not in done:
                keep(measure(method, regime, data, private), FILE)


if __name__ == "__main__":
    main()
