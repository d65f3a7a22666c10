"""Training near the global model, worked by hand."""

from collections import Counter
from dataclasses import replace

import pytest

from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.algorithms.fedprox import FedProx, draw_epochs
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import HALFWAY, client_of, digest, point, points_problem, scalar_problem, with_batch_norm

TWO_STEPS = replace(HALFWAY, epochs=2)


@pytest.mark.parametrize(("pull", "expected"), [(0.0, 6.0), (1.0, 5.0), (2.0, 4.0)])
def test_the_pull_acts_once_the_client_has_left_the_global_model(pull: float, expected: float) -> None:
    # From 0 towards 8, first step: the pull is 0, 0 → 4. Second: 4 − 0.25 · (2(4 − 8) + μ(4 − 0)).
    problem = replace(scalar_problem([(8.0, 0.0)]), trainer=TWO_STEPS)
    trained = FedProx(mu=pull).train(client_of(problem, 0), Download(point(0)), None)
    assert trained.model.item() == expected


def test_the_pull_is_towards_the_model_of_this_round() -> None:
    # The first round ends at 5. Then 5 − 0.25 · 2(5 − 8) = 6.5, and 6.5 − 0.25 · (2(6.5 − 8) + (6.5 − 5)) = 6.875.
    problem = replace(scalar_problem([(8.0, 0.0)]), trainer=TWO_STEPS)
    assert simulate(problem, FedProx(mu=1.0), SimulationConfig(rounds=2)).models[0].item() == 6.875


def test_without_a_pull_it_is_fedavg() -> None:
    for problem in (points_problem(), points_problem(build=with_batch_norm)):
        plain = simulate(problem, FedAvg(), SimulationConfig(rounds=3))
        near = simulate(problem, FedProx(mu=0.0), SimulationConfig(rounds=3))
        assert digest(near.models) == digest(plain.models)
        assert near.after_training == plain.after_training


def test_stragglers_do_from_one_to_all_but_one_epoch_evenly() -> None:
    rng = stream(0)
    drawn = Counter(draw_epochs(5, 1.0, rng) for _ in range(4000))
    assert sorted(drawn) == [1, 2, 3, 4]
    assert all(900 < times < 1100 for times in drawn.values())


def test_the_share_of_stragglers_is_the_chance_of_being_one() -> None:
    rng = stream(0)
    drawn = Counter(draw_epochs(5, 0.25, rng) for _ in range(4000))
    assert 2900 < drawn[5] < 3100


def test_without_stragglers_and_with_a_single_epoch_nobody_is_slow() -> None:
    rng = stream(0)
    assert {draw_epochs(5, 0.0, rng) for _ in range(100)} == {5}
    assert {draw_epochs(1, 1.0, rng) for _ in range(100)} == {1}


def test_what_stragglers_return_is_kept() -> None:
    # Of two epochs a straggler does one: halfway to 8 and to −4, so the average is 1.
    problem = replace(scalar_problem([(8.0, 0.0), (-4.0, 0.0)]), trainer=TWO_STEPS)
    result = simulate(problem, FedProx(mu=1.0, stragglers=1.0), SimulationConfig(rounds=1))
    assert result.models[0].item() == 1.0


def test_a_straggler_computes_less() -> None:
    client = client_of(replace(scalar_problem([(8.0, 0.0)]), trainer=TWO_STEPS), 0)
    FedProx(stragglers=1.0).train(client, Download(point(0)), None)
    assert client.effort.gradients == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"mu": -0.1}, "'mu' .* must be at least 0"),
        ({"mu": float("nan")}, "'mu' .* must be a number"),
        ({"stragglers": 1.5}, "'stragglers' .* must be between 0 and 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        FedProx(**options)
