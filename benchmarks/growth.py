"""Growth: 15 to 1,000 clients with the same work each, by the bare engine."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from statistics import median

from measure import RoundTimer, digits_clients, ratios, report, spread

from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.networks import mlp
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

SIZES = (15, 100, 1000)  # `whole_run` has 10,000, with a folder
OVERHEAD = "milliseconds a client-round, but for training and scoring"


def measure(num_clients: int, workers: int) -> dict[str, float]:
    """Run a few rounds in this process, and say what they took a client."""
    model = Model(mlp((1, 8, 8), 10))
    problem = FederatedProblem(model, model.read(), digits_clients(num_clients), Sgd(epochs=5, batch_size=20), seed=0)
    timer = RoundTimer()
    rounds = max(4, 500 // num_clients)  # enough of them that starting the workers does not count
    result = simulate(
        problem, FedFomo(), SimulationConfig(rounds=rounds, workers=workers, vectorise=True), callback=timer
    )
    spent = result.seconds
    visits = num_clients * (rounds + 1)  # the last federated update is one more for everybody
    return {
        "milliseconds a client-round": 1000 * median(timer.rounds()[1:]) / num_clients,
        OVERHEAD: 1000 * (timer.total() - (spent.training + spent.scoring) / workers) / visits,
        "megabytes, coordinating process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def main(repetitions: int = 3) -> None:
    """Measure every size in a process of its own: memory that was used once is not given back."""
    cores = os.cpu_count() or 1
    runs: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    for _ in range(repetitions):
        for size, found in runs.items():
            command = [sys.executable, __file__, str(size), str(cores)]
            found.append(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))  # noqa: S603
    names = list(runs[SIZES[0]][0])
    figures = {
        f"{name}, {size:,} clients": spread([run[name] for run in found])
        for size, found in runs.items()
        for name in names
    }
    first = [run[names[0]] for run in runs[100]]
    growth = ratios([run[names[0]] for run in runs[1000]], first)
    report(
        "growth",
        {
            **figures,
            "time a client-round, 1,000 clients against 100": growth,
            "workers": cores,
            "repetitions": repetitions,
        },
    )


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.stdout.write(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
    else:
        main()
