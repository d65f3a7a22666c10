"""What a run does before its first round, and when a client's own code fails."""

import time
from dataclasses import replace

import pytest
from torch import Tensor

from fedfomo.algorithms import make_algorithm
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.simulation.callbacks import Callback
from fedfomo.simulation.executors import WorkerError
from fedfomo.simulation.simulate import SimulationConfig, simulate
from toy_problems import DivergesOnce, digest, points_problem


class Brittle(Sgd):
    """Fails for whoever has 7 examples."""

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        if len(task.examples) == 7:
            raise KeyError("theirs")
        return super().train(model, task)


def test_an_error_in_a_clients_own_code_names_the_client() -> None:
    problem = replace(points_problem(40, sizes={23: (7, 4)}), trainer=Brittle(epochs=1))
    with pytest.raises(KeyError) as raised:
        simulate(problem, make_algorithm("fedfomo"), SimulationConfig(rounds=1))
    assert raised.value.__notes__ == ["client 23 failed in round 0"]
    with pytest.raises(WorkerError, match=r"(?s)one of clients .*KeyError: 'theirs'\nclient 23 failed in round 0"):
        simulate(problem, make_algorithm("fedfomo"), SimulationConfig(rounds=1, workers=2))


@pytest.mark.parametrize("method", ["local", "ditto", "fedrep"])
def test_trainings_that_diverge_are_counted_and_forgotten_in_whatever_hands(method: str) -> None:
    problem = replace(points_problem(7), trainer=DivergesOnce(batch_size=5, epochs=1))  # seven by two: some are split
    here, there = (
        simulate(problem, make_algorithm(method), SimulationConfig(rounds=3, workers=workers)) for workers in (0, 2)
    )
    assert here.refusals == there.refusals == dict.fromkeys(range(7), 1)
    assert digest(here.models) == digest(there.models)


class StopError(Exception):
    """Ends a run as soon as it starts."""


class Impatient(Callback):
    """Stops what it follows."""

    def start(self, rounds_done: int) -> None:
        raise StopError


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_run_of_many_rounds_starts_at_once(participation: float) -> None:
    began = time.process_time()
    with pytest.raises(StopError):
        simulate(
            points_problem(), make_algorithm("local"), SimulationConfig(10**12, participation), callback=Impatient()
        )
    assert time.process_time() - began < 1


def test_no_more_workers_than_clients_are_hired() -> None:
    with pytest.raises(StopError):
        simulate(points_problem(2), make_algorithm("local"), SimulationConfig(1, workers=10**6), callback=Impatient())
