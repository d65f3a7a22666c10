"""Small clients: 100 clients of 100 digits each, a perceptron. Their models are stacked."""

from __future__ import annotations

import copy
import os
from statistics import median

import torch
from measure import RoundTimer, digits_clients, ratios, report, seconds, spread
from reference import ReferenceLoop

from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.networks import mlp
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

CLIENTS, EPOCHS, BATCH, DOWNLOADS = 100, 5, 20, 5


def main(repetitions: int = 5) -> None:
    """Measure the engine, stacked and exact, and the reference loop, one after the other, several times."""
    cores = os.cpu_count() or 1
    data = digits_clients(CLIENTS)
    module = mlp((1, 8, 8), 10)
    model = Model(copy.deepcopy(module))
    problem = FederatedProblem(model, model.read(), data, Sgd(epochs=EPOCHS, batch_size=BATCH), seed=0)
    loops = {threads: ReferenceLoop(module, data, BATCH, EPOCHS, DOWNLOADS) for threads in (1, cores)}
    engine: dict[bool, list[float]] = {True: [], False: []}
    reference: dict[int, list[float]] = {threads: [] for threads in loops}
    for _ in range(repetitions):
        for stack, times in engine.items():
            timer = RoundTimer()
            plan = SimulationConfig(rounds=3, workers=cores, vectorise=stack)
            simulate(problem, FedFomo(num_downloads=DOWNLOADS), plan, callback=timer)
            times.append(timer.rounds()[-1])  # the first round has nothing to download
        for threads, loop in loops.items():
            torch.set_num_threads(threads)
            reference[threads].append(seconds(loop.run_round))
    best = min(reference, key=lambda threads: median(reference[threads]))
    report(
        "small_clients",
        {
            "seconds a round, stacked": spread(engine[True]),
            "seconds a round, exact": spread(engine[False]),
            "times faster than the reference loop, stacked": ratios(reference[best], engine[True]),
            "times faster than the reference loop, exact": ratios(reference[best], engine[False]),
            "reference loop, best number of threads": best,
            "reference loop, seconds a round": spread(reference[best]),
            "repetitions": repetitions,
        },
    )


if __name__ == "__main__":
    main()
