"""Training alone, worked by hand."""

import math

import torch

from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.algorithms.local import Local, better_of
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, point, points_problem, scalar_client, scalar_problem


def test_plain_training_goes_on_whatever_validation_says() -> None:
    # Halfway to 8 in every round: 4, 6, 7.
    assert simulate(scalar_problem([(8.0, 3.0)]), Local(), SimulationConfig(rounds=3)).models[0].item() == 7.0


def test_the_best_is_kept_and_trained_on_from() -> None:
    # Validation wants 5: 4 is better than 0, and 6 no better than 4, to which every round returns.
    problem = scalar_problem([(8.0, 5.0)])
    result = simulate(problem, Local(keep_best=True), SimulationConfig(rounds=3))
    assert result.models[0].item() == 4.0
    assert result.traffic.bytes_down == result.traffic.bytes_up == 0
    # It wants 6.5: 6 is better than 4, and 7 is not better than 6.
    assert (
        simulate(scalar_problem([(8.0, 6.5)]), Local(keep_best=True), SimulationConfig(rounds=5)).models[0].item()
        == 6.0
    )


def test_without_validation_data_nothing_is_kept_back() -> None:
    problem = scalar_problem([(8.0, None)])
    assert simulate(problem, Local(keep_best=True), SimulationConfig(rounds=3)).models[0].item() == 7.0


def test_a_broken_model_is_never_the_better() -> None:
    client = scalar_client(3.0)
    broken, whole = point(math.nan), point(1.0)
    assert torch.equal(better_of(client, whole, broken), whole)
    assert torch.equal(better_of(client, broken, whole), whole)
    assert torch.equal(better_of(client, whole, point(5.0)), whole)  # a tie: stay


def test_it_is_fedfomo_without_anybody_else_bit_for_bit() -> None:
    problem = points_problem(num_clients=1)
    alone = simulate(problem, Local(keep_best=True), SimulationConfig(rounds=6))
    federated = simulate(problem, FedFomo(), SimulationConfig(rounds=6))
    assert digest(alone.models) == digest(federated.models)
    assert alone.after_training == federated.after_training
    assert alone.after_update == federated.after_update
