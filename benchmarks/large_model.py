"""A large model: 11 million parameters, 20 clients; what mixing and storing take, in time and memory."""

from __future__ import annotations

import os
import resource
import tempfile
from pathlib import Path

import torch
from measure import RoundTimer, gaussian_clients, in_turn, ratios, report, spread
from torch import nn

from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.vectors import distances_from, mix
from fedfomo.engine.tensor_store import TensorStore
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate

CLIENTS, DOWNLOADS = 20, 5


def perceptron() -> nn.Module:
    """Build 11,010,058 parameters."""
    return nn.Sequential(nn.Linear(784, 2944), nn.ReLU(), nn.Linear(2944, 2940), nn.ReLU(), nn.Linear(2940, 10))


def main(repetitions: int = 9) -> None:
    """Time mixing and storing beside plain copies of the same bytes, then whole rounds."""
    cores = os.cpu_count() or 1
    model = Model(perceptron())
    theta = model.read()
    models = [theta + 0.001 * torch.randn(len(theta)) for _ in range(DOWNLOADS + 1)]
    shares = torch.full((DOWNLOADS + 1,), 1 / (DOWNLOADS + 1), dtype=torch.float64)
    with one_torch_thread(), tempfile.TemporaryDirectory() as folder:
        files = TensorStore(Path(folder), durable=False)
        contenders = {
            "copying six models": lambda: [one.clone() for one in models],
            "mixing six models": lambda: mix(theta, models, shares),
            "six distances": lambda: distances_from(theta, models, len(theta), "l2"),
            "storing six models, one after the other": lambda: [
                files.save("one.safetensors", {"model": theta}) for _ in models
            ],
        }
        times = in_turn(contenders, repetitions)
    copying = times.pop("copying six models")
    problem = FederatedProblem(model, theta, gaussian_clients(CLIENTS, 784), Sgd(epochs=1), seed=0)
    timer = RoundTimer()
    result = simulate(
        problem, FedFomo(num_downloads=DOWNLOADS), SimulationConfig(rounds=3, workers=cores), callback=timer
    )
    spent = result.seconds
    report(
        "large_model",
        {
            "parameters": len(theta),
            "seconds, copying six models": spread(copying),
            **{f"{name}, in copies": ratios(took, copying) for name, took in times.items()},
            "seconds a round": spread(timer.rounds()[1:]),
            "share of the workers' time that is training and scoring": (spent.training + spent.scoring) / spent.all,
            "megabytes, coordinating process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "megabytes, largest worker": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
            "repetitions": repetitions,
        },
    )


if __name__ == "__main__":
    main()
