"""pFedGraph: a projection instead of a solver, and a term that turns."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedfomo.algorithms.fedavg import Upload
from fedfomo.algorithms.local import Local
from fedfomo.algorithms.pfedgraph import (
    CosinePenalty,
    PFedGraph,
    collaboration_weights,
    onto_simplex,
    similarities,
)
from fedfomo.core.options import written
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, numbers, point, points_problem, scalar_problem, start_of


def test_projections_onto_the_simplex() -> None:
    assert onto_simplex(numbers(0.2, 0.3, 0.5)).tolist() == pytest.approx([0.2, 0.3, 0.5])  # is on it
    assert onto_simplex(numbers(1.2, 0.8)).tolist() == pytest.approx([0.7, 0.3])  # each less 0.5
    assert onto_simplex(numbers(2.0, 0.5, -1.0)).tolist() == pytest.approx([1.0, 0.0, 0.0])
    assert onto_simplex(numbers(-5.0)).tolist() == [1.0]


def test_weights_by_hand() -> None:
    # q = (1/2, 1/4, 1/4), cosines (1, 0.8, −0.2), α = 0.5: q + cosines = (1.5, 1.05, 0.05).
    # Two stay: (1.5 + 1.05 − 1)/2 = 0.775 is taken off.
    weights = collaboration_weights(numbers(1.0, 0.8, -0.2), numbers(20, 10, 10), alpha=0.5)
    assert weights.tolist() == pytest.approx([0.725, 0.275, 0.0])


@given(st.integers(1, 12), st.floats(0.05, 5.0), st.integers(0, 10_000))
def test_the_closed_form_is_what_a_solver_finds(num: int, alpha: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    cosines, sizes = rng.uniform(-1, 1, num), rng.integers(1, 100, num)
    d, q = -cosines, sizes / sizes.sum()

    def objective(x: np.ndarray) -> float:
        return float(alpha * x @ x + (d - 2 * alpha * q) @ x)

    found = minimize(
        objective,
        np.full(num, 1 / num),
        jac=lambda x: 2 * alpha * x + d - 2 * alpha * q,
        method="SLSQP",
        bounds=[(0, 1)] * num,
        constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    x = collaboration_weights(torch.from_numpy(cosines), torch.from_numpy(sizes).double(), alpha)
    assert x.numpy() == pytest.approx(found.x, abs=1e-5)
    assert objective(x.numpy()) <= objective(found.x) + 1e-10


def test_a_large_alpha_gives_fedavgs_weights_and_a_small_one_the_most_alike() -> None:
    alike, sizes = numbers(1.0, 0.5, -0.5), numbers(10, 30, 60)
    assert collaboration_weights(alike, sizes, 1e9).tolist() == pytest.approx([0.1, 0.3, 0.6], abs=1e-6)
    assert collaboration_weights(alike, sizes, 1e-9).tolist() == pytest.approx([1.0, 0.0, 0.0], abs=1e-6)


def test_similarities_are_of_moves_from_the_start() -> None:
    # From (1, 1): moves (3, 4), (4, 3), (4, −3): cosines 24/25, which counts as 1, and 0. Buffers do not count.
    models = [point(4, 5, 7), point(5, 4, 0), point(5, -2, 0), point(1, 1, 5)]
    found = similarities(models, point(1, 1, 0), 2)
    assert found[0].tolist() == pytest.approx([1.0, 1.0, 0.0, 0.0], abs=1e-12)
    assert found[1].tolist() == pytest.approx([1.0, 1.0, 7 / 25, 0.0], abs=1e-12)


def test_the_turning_term_has_the_gradient_of_minus_the_cosine() -> None:
    theta = torch.tensor([0.3, -1.2, 0.5], dtype=torch.float64, requires_grad=True)
    direction = numbers(1.0, 2.0, -0.5)
    (-0.7 * (direction @ theta) / theta.norm()).backward()
    gradient = torch.ones(3, dtype=torch.float64)
    CosinePenalty(direction, 0.7).add_gradient(gradient, theta.detach())
    assert theta.grad is not None
    assert (gradient - 1).tolist() == pytest.approx(theta.grad.tolist())


def test_descent_turns_towards_the_direction() -> None:
    # At (1, 0) with direction (0, 1): the gradient is −λ (0, 1), so a step goes up, towards it.
    gradient = torch.zeros(2)
    CosinePenalty(point(0, 1), 0.5).add_gradient(gradient, point(1, 0))
    assert gradient.tolist() == [0.0, -0.5]


def test_a_model_of_zeros_has_no_direction_to_turn() -> None:
    gradient = torch.zeros(2)
    CosinePenalty(point(0, 1), 0.5).add_gradient(gradient, point(0, 0))
    assert gradient.tolist() == [0.0, 0.0]


def test_clients_are_sent_their_mixture_and_its_direction() -> None:
    # From 0: models (3, 4) and (0, 2) move with cosine 0.8; α = 0.5 and q = 1/2 each: (1.5, 1.3) less 0.9.
    algorithm = PFedGraph(alpha=0.5)
    state = algorithm.start_server(start_of(3, 0.0, 0.0))
    state = algorithm.aggregate(state, {0: Upload(point(3, 4), 5), 2: Upload(point(0, 2), 5)})
    assert state.graph.tolist() == [pytest.approx([0.6, 0.4]), pytest.approx([0.4, 0.6])]
    sent = algorithm.configure_client(state, 0, stream(0))
    assert sent.model.tolist() == pytest.approx([1.8, 3.2])
    assert sent.direction is not None
    assert sent.direction.tolist() == pytest.approx([0.36, 0.88])  # 0.6·(0.6, 0.8) + 0.4·(0, 1)
    assert algorithm.configure_client(state, 1, stream(0)).model.tolist() == [1.5, 3.0]  # never heard of: FedAvg's


def test_whoever_does_not_turn_is_sent_no_direction() -> None:
    algorithm = PFedGraph(lambda_=0.0)
    state = algorithm.aggregate(algorithm.start_server(start_of(1, 0.0)), {0: Upload(point(3), 5)})
    assert algorithm.configure_client(state, 0, stream(0)).direction is None


def test_the_latest_uploads_of_absent_clients_stay_in_the_graph() -> None:
    algorithm = PFedGraph()
    state = algorithm.aggregate(algorithm.start_server(start_of(3, 0.0)), {0: Upload(point(1), 5)})
    state = algorithm.aggregate(state, {2: Upload(point(3), 15)})
    assert sorted(state.uploads) == [0, 2]
    # One dimension, so all cosines are 1, and the weights are q = (1/4, 3/4): (1 + 9)/4.
    assert algorithm.configure_client(state, 0, stream(0)).model.item() == pytest.approx(2.5)


def test_with_a_small_alpha_and_no_turning_it_is_local_training() -> None:
    # Models whose moves have a cosine above 0.9 would count as one; these three clients disagree more.
    problem, plan = points_problem(num_clients=3), SimulationConfig(rounds=3)
    alone = simulate(problem, PFedGraph(alpha=1e-3, lambda_=0.0), plan).models
    assert digest(alone) == digest(simulate(problem, Local(), plan).models)


def test_among_equals_it_is_fedavg() -> None:
    # In one dimension all move alike: the mean of 4 and 6 is 5 (from 0 halfway to 8 and 12), then 7.5.
    problem = scalar_problem([(8.0, 8.0), (12.0, 12.0)])
    result = simulate(problem, PFedGraph(), SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == pytest.approx({0: 7.5, 1: 7.5})


def test_before_any_upload_everybody_gets_the_initial_model() -> None:
    algorithm = PFedGraph()
    state = algorithm.start_server(start_of(3, 7.0))
    assert algorithm.aggregate(state, {}) is state
    assert algorithm.configure_client(state, 1, stream(0)).model.item() == 7.0


def test_impossible_options_are_refused() -> None:
    for options in ({"alpha": 0.0}, {"lambda_": -1.0}):
        with pytest.raises(InputError, match=written(next(iter(options)))):
            PFedGraph(**options)
