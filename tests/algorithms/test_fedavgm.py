"""A server with momentum, worked by hand."""

import pytest
import torch

from fedfomo.algorithms.fedavg import FedAvg, Upload
from fedfomo.algorithms.fedavgm import FedAvgM, State, moved, next_velocity
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, point, points_problem, scalar_problem, with_batch_norm


def test_a_velocity_keeps_a_share_of_itself() -> None:
    # 0.5 · 2 + 3.
    assert next_velocity(point(2), point(3), momentum=0.5).tolist() == [4.0]


def test_the_model_moves_against_the_velocity() -> None:
    # 10 − 0.5 · 4.
    assert moved(point(10), point(4), point(3), rate=0.5, lookahead=0.0).tolist() == [8.0]


def test_nesterov_looks_ahead() -> None:
    # 10 − 0.5 · (0.5 · 4 + 3).
    assert moved(point(10), point(4), point(3), rate=0.5, lookahead=0.5).tolist() == [7.5]


@pytest.mark.parametrize(("nesterov", "expected"), [(False, 2.0), (True, 2.125)])
def test_a_whole_run_of_two_clients(nesterov: bool, expected: float) -> None:
    # The average of the two goes halfway to 2.
    # Plain: average 1, v = Δ = −1, θ = 1; average 1.5, Δ = −0.5, v = −0.5 − 0.5, θ = 1 + 1.
    # Nesterov: v = Δ = −1, θ = 0.5 · 1 + 1; average 1.75, Δ = −0.25, v = −0.75, θ = 1.5 + 0.5 · 0.75 + 0.25.
    algorithm = FedAvgM(momentum=0.5, server_rate=1.0, nesterov=nesterov)
    result = simulate(scalar_problem([(8.0, 0.0), (-4.0, 0.0)]), algorithm, SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == {0: expected, 1: expected}


@pytest.mark.parametrize("nesterov", [False, True])
def test_without_momentum_it_is_fedavg(nesterov: bool) -> None:
    for problem in (points_problem(), points_problem(build=with_batch_norm)):
        plain = simulate(problem, FedAvg(), SimulationConfig(rounds=3)).models
        algorithm = FedAvgM(momentum=0.0, server_rate=1.0, nesterov=nesterov)
        assert digest(simulate(problem, algorithm, SimulationConfig(rounds=3)).models) == digest(plain)


def test_buffers_are_averaged() -> None:
    # The first coordinate is trainable: Δ = 0 − 2, v = 0.5 · 4 − 2 = 0, so it stays; the second is a buffer.
    state = FedAvgM(momentum=0.5, server_rate=1.0).aggregate(
        State(point(0, 1), point(4)), {0: Upload(point(2, 3), 1), 1: Upload(point(2, 7), 3)}
    )
    assert state.model.tolist() == [0.0, 6.0]
    assert state.velocity.tolist() == [0.0]


def test_a_round_without_examples_changes_nothing() -> None:
    state = State(point(3), point(5))
    assert FedAvgM().aggregate(state, {}) is state
    assert FedAvgM().aggregate(state, {0: Upload(point(8), 0)}) is state


def test_one_client_accelerates_alone() -> None:
    # Halfway to 8 is 4: v = −4, θ = 4. Then 6: Δ = −2, v = −4, θ = 8.
    algorithm = FedAvgM(momentum=0.5, server_rate=1.0)
    assert simulate(scalar_problem([(8.0, 0.0)]), algorithm, SimulationConfig(rounds=2)).models[0].item() == 8.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"momentum": 1.0}, "'momentum' .* must be at least 0 and below 1"),
        ({"momentum": float("nan")}, "'momentum' .* must be a number"),
        ({"server_rate": 0.0}, "'server_rate' .* must be above 0"),
        ({"server_rate": float("inf")}, "'server_rate' .* must be a number"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        FedAvgM(**options)  # type: ignore[arg-type]


def test_the_server_starts_at_rest() -> None:
    problem = points_problem(build=with_batch_norm)
    state = FedAvgM().start_server(problem.start(2))
    assert torch.equal(state.model, problem.initial)
    assert state.velocity.tolist() == [0.0] * problem.model.layout.num_trainable
