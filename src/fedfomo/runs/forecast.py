"""How long a run will take, from a few measured steps."""

from __future__ import annotations

import time

from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.local_training import Sgd
from fedfomo.core.rng import stream
from fedfomo.core.round import cohort_size
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.worker import FederatedProblem

MEASURED_BATCHES = 4


def forecast_seconds(problem: FederatedProblem, plan: SimulationConfig) -> float:
    """Train one client for a few batches and scale up; scoring is taken to cost as much again as one epoch."""
    trainer = problem.trainer
    if not isinstance(trainer, Sgd):
        return 0.0
    largest = max(problem.clients, key=lambda data: len(data.train)).train
    rng = stream(problem.seed, "forecast")
    with one_torch_thread():
        problem.model.load(problem.initial)
        started, measured = 0.0, 0
        for number, batch in enumerate(largest.shuffled_batches(trainer.batch_size, rng)):
            if number == 1:  # the first batch pays for everything that is set up once
                started = time.perf_counter()
            if number >= 1:
                measured += len(batch)
            problem.model.backward(batch)
            if number == MEASURED_BATCHES:
                break
        if not measured:
            return 0.0
        per_example = (time.perf_counter() - started) / measured
    examples = sum(len(data.train) for data in problem.clients) * (trainer.epochs + 1)
    share = cohort_size(len(problem.clients), plan.participation) / len(problem.clients) * (1 - plan.dropout)
    return plan.rounds * share * examples * per_example / max(1, plan.workers)
