"""Every method in every kind of scenario, on a few real images."""

import math
from functools import cache

import pytest
import torch

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.local_training import Sgd
from fedfomo.core.networks import mlp
from fedfomo.datasets.bundled import DataSet, load_digits
from fedfomo.datasets.config import ScenarioConfig
from fedfomo.datasets.scenarios import build_scenario
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from toy_problems import initialised


@cache
def few_digits() -> DataSet:
    digits = load_digits()
    return DataSet("few", digits.train.take(torch.arange(200)), digits.test.take(torch.arange(80)), 10, "")


@cache
def problem_of(scenario: str) -> FederatedProblem:
    data = few_digits()
    config = ScenarioConfig(scenario=scenario, clients=4, distributions=2, alpha=0.5, representation="pixels")
    spread = build_scenario(config, data, seed=0)
    model = initialised(lambda: mlp(tuple(data.train.inputs.shape[1:]), 10))
    groups = spread.partition.groups, spread.partition.target_groups
    return FederatedProblem(model, model.read(), spread.clients, Sgd(batch_size=20, epochs=1), 0, *groups)


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("scenario", ["pathological", "latent", "dirichlet", "ood"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_everybody_ends_with_a_model_that_predicts(name: str, scenario: str, participation: float) -> None:
    problem, plan = problem_of(scenario), SimulationConfig(rounds=2, participation=participation)
    if name == "oracle" and problem.groups is None:
        with pytest.raises(InputError, match="this scenario has none"):
            simulate(problem, make_algorithm(name), plan)
        return
    result = simulate(problem, make_algorithm(name), plan)
    assert sorted(result.models) == sorted(result.after_update) == [0, 1, 2, 3]
    assert all(bool(torch.isfinite(model).all()) for model in result.models.values())
    scores = [*result.after_update.values(), *result.after_training.values()]
    assert all(math.isfinite(score.loss) for score in scores if score.num_examples)
    assert not result.refusals
