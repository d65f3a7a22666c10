"""MOCHA for linear models: dual ascent by hand, and whole runs against the solution of the quadratic programme."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedfomo.algorithms.mocha_linear import (
    LinearModel,
    MochaLinear,
    State,
    Upload,
    ascend,
    features_of,
    linear_shape,
    one_against_rest,
    spread_of,
    sum_of,
    theta_of,
    with_ones,
)
from fedfomo.core.local_training import Sgd
from fedfomo.core.networks import mlp, small_cnn, vgg11
from fedfomo.core.parameters import Layout
from fedfomo.core.rng import stream
from fedfomo.core.round import run_round
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from toy_problems import ROUNDS, InProcess, client_of, federation_of, points_problem

STRENGTH = 0.05
NEVER = 10_000
RELATED = torch.tensor([[0.5, 0.3, 0.0], [0.3, 0.4, -0.1], [0.0, -0.1, 0.1]], dtype=torch.float64)


def table(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_one_step_of_dual_ascent() -> None:
    # x = (3, 1), ‖x‖² = 10, w = (0.1, −0.2), y = 1: u = 0.1. With ρΣ_tt = 2, λ = 0.5, n = 1 the step is
    # 0.5 · 1 · (1 − 0.1)/(2 · 10) = 0.0225, from α = 0.25 to 0.2725. Against y = −1: u = −0.1 and the step 0.0275.
    model, order = table([0.1, -0.2], [0.1, -0.2]), torch.tensor([0])
    found = ascend(table([0.25, 0.0]), table([3, 1]), table([1, -1]), model, 2.0, 0.5, order)
    assert torch.allclose(found, table([0.2725, -0.0275]))


def test_dual_variables_stay_within_their_box() -> None:
    x, order = table([1.0]), torch.tensor([0])
    wrong, right = (ascend(table([0.5]), x, table([1.0]), table([w]), 1.0, 100.0, order) for w in (-9.0, 9.0))
    assert (wrong.item(), right.item()) == (1.0, 0.0)


def test_a_second_step_sees_the_first() -> None:
    # λn/ρΣ_tt = 1 and w = 0, x = 1 twice, y = 1: α_1 = 1 moves w + ρΔw to 1, where the second hinge is satisfied.
    zeros, ones, order = table([0.0], [0.0]), table([1.0], [1.0]), torch.tensor([0, 1])
    found = ascend(zeros, ones, ones, table([0.0]), 1.0, 0.5, order)
    assert found.tolist() == [[1.0], [0.0]]


def test_sums_are_means_of_examples_by_their_variables() -> None:
    # Class 0: (1 · (2, 1) + 0)/2; class 1: (−1 · (2, 1) + 0.5 · (4, 1))/2.
    assert sum_of(table([1, -1], [0, 0.5]), table([2, 1], [4, 1])).tolist() == [1.0, 0.5, 0.0, -0.25]


def test_labels_become_signs_and_models_become_parameters() -> None:
    assert one_against_rest(torch.tensor([2, 0]), 3).tolist() == [[-1, -1, 1], [1, -1, -1]]
    model = table([1, 2, 3], [4, 5, 6])  # biases 3 and 6
    theta = theta_of(model)
    assert theta.tolist() == [1, 2, 4, 5, 3, 6]
    network = LinearModel(2, 2)
    for view, value in zip(network.parameters(), Layout.of(network).views(theta).values(), strict=True):
        view.data.copy_(value)
    inputs = torch.tensor([[1.0, -1.0]])
    assert torch.equal(network(inputs).double(), with_ones(inputs.double()) @ model.T)


def test_caution_grows_with_relations() -> None:
    assert spread_of(torch.eye(3, dtype=torch.float64) / 3) == pytest.approx(1.0)
    assert spread_of(table([0.5, -0.25], [-0.25, 0.5])) == pytest.approx(1.5)


def test_sizes_are_read_off_the_network() -> None:
    assert linear_shape(Layout.of(mlp((1, 8, 8), 10)), side=32) == (64, 10)
    assert linear_shape(Layout.of(small_cnn((3, 32, 32), 7)), side=32) == (3 * 32 * 32, 7)
    assert linear_shape(Layout.of(vgg11((3, 32, 32), 100)), side=8) == (3 * 8 * 8, 100)
    with pytest.raises(InputError, match="vectors and images"):
        linear_shape(Layout.of(nn.Sequential(nn.Conv1d(1, 2, 3), nn.Linear(4, 2))), side=32)


def test_images_are_flattened_or_averaged_first() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4)
    assert torch.equal(features_of(image, 16), torch.arange(16.0)[None])
    assert features_of(image, 4).tolist() == [[2.5, 4.5, 10.5, 12.5]]


def converged(problem: FederatedProblem, covariance: Tensor, rounds: int) -> tuple[Tensor, list[Tensor]]:
    """Run with fixed relations; return the models, client × class × feature, and the dual variables."""
    algorithm = MochaLinear(lambda_=STRENGTH, relate_every=NEVER)
    exchange = InProcess(problem, algorithm)
    state = replace(algorithm.start_server(problem.start(ROUNDS)), covariance=covariance)
    for t in range(rounds):
        state = run_round(federation_of(problem, algorithm), state, t, range(3), exchange).state
    models = covariance @ state.sums / STRENGTH
    return models.view(3, 3, -1), [exchange.memories[n].dual for n in range(3)]


def reference(features: list[Tensor], signs: list[Tensor], covariance: Tensor) -> Tensor:
    """Solve the dual quadratic programme of one class over all clients at once, by projected gradient ascent."""
    size = sum(len(x) for x in features)
    rows = torch.zeros(size, len(features), features[0].shape[1], dtype=torch.float64)  # y x / n, in its client's place
    start = 0
    for t, (x, y) in enumerate(zip(features, signs, strict=True)):
        rows[start : start + len(x), t] = y[:, None] * x / len(x)
        start += len(x)
    gains = torch.cat([torch.full((len(x),), 1 / len(x), dtype=torch.float64) for x in features])
    quadratic = torch.einsum("atd,ts,bsd->ab", rows, covariance, rows) / STRENGTH
    step = 1 / torch.linalg.eigvalsh(quadratic).max()
    box = torch.zeros(size, dtype=torch.float64)
    for _ in range(20_000):
        box = (box + step * (gains - quadratic @ box)).clamp(0.0, 1.0)
    return torch.einsum("a,atd,ts->sd", box, rows, covariance) / STRENGTH


def test_fixed_relations_lead_to_the_solution_of_the_quadratic_programme() -> None:
    problem = replace(points_problem(num_clients=3), trainer=Sgd(epochs=5))
    models, duals = converged(problem, RELATED, rounds=150)
    features = [with_ones(data.train.inputs.double()) for data in problem.clients]
    signs = [one_against_rest(data.train.labels, 3) for data in problem.clients]
    precision = torch.linalg.inv(RELATED)
    for label in range(3):
        found = models[:, label]
        hinges = [
            (1 - y[:, label] * (x @ w)).clamp(min=0).mean() for x, y, w in zip(features, signs, found, strict=True)
        ]
        norm = (found.T @ precision @ found).trace()  # tr(WΩWᵀ) with a model in each row
        primal = torch.stack(hinges).sum() + STRENGTH / 2 * norm
        gains = [(dual[:, label] * y[:, label]).mean() for dual, y in zip(duals, signs, strict=True)]
        gap = primal - (torch.stack(gains).sum() - STRENGTH / 2 * norm)
        assert abs(gap) < 1e-6 * primal  # no gap: both are optimal, whoever computed them
        expected = reference(features, [y[:, label] for y in signs], RELATED)
        assert torch.allclose(found, expected, atol=1e-4)  # sums travel as float32


def test_unrelated_clients_do_not_hear_of_each_other() -> None:
    problem = replace(points_problem(num_clients=3), trainer=Sgd(epochs=5))
    models, _ = converged(problem, torch.eye(3, dtype=torch.float64) / 3, rounds=5)
    moved = replace(problem, clients=[problem.clients[0], *problem.clients[:2]])
    others, _ = converged(moved, torch.eye(3, dtype=torch.float64) / 3, rounds=5)
    assert torch.equal(models[0], others[0])
    assert not torch.equal(models[1], others[1])


def test_relations_follow_the_models() -> None:
    # Sums (2, 0) and (0, 1) under Σ = I/2 and λ = 1 are models (1, 0) and (0, 0.5): roots 1 and 0.5, trace 1.5.
    state = State(0, table([2, 0], [0, 0]), torch.eye(2, dtype=torch.float64) / 2, 2)
    after = MochaLinear(lambda_=1.0, relate_every=1).aggregate(state, {1: Upload(torch.tensor([0.0, 1.0]))})
    assert torch.allclose(after.covariance, table([2 / 3, 0], [0, 1 / 3]))
    assert torch.equal(after.sums, table([2, 0], [0, 1]))


def test_a_client_adds_its_own_part_to_the_others() -> None:
    # Client 0 hears (0.25 · (0, 8))/0.5 = (0, 4), and would add 0.75/0.5 of its own sum.
    state = State(0, table([2, 0], [0, 8]), table([0.75, 0.25], [0.25, 0.25]), 2)
    download = MochaLinear(lambda_=0.5).configure_client(state, 0, stream(0))
    assert (download.others.tolist(), download.variance, download.spread) == ([0.0, 4.0], 0.75, 2.0)


def test_a_lost_upload_costs_nothing_but_time() -> None:
    # Sums are sent whole, so the next one that arrives makes up for the one that did not.
    problem = points_problem(num_clients=2)
    algorithm = MochaLinear()
    exchange = InProcess(problem, algorithm)
    state = algorithm.start_server(problem.start(ROUNDS))
    for t in range(3):
        downloads = {n: algorithm.configure_client(state, n, stream(0)) for n in range(2)}
        uploads = dict(exchange(t, downloads))
        if t != 1:
            state = algorithm.aggregate(state, uploads)
    assert torch.equal(state.sums[0].float(), exchange.memories[0].sum)


def test_sums_of_another_size_are_refused() -> None:
    state = State(0, table([2, 0], [0, 8]), torch.eye(2, dtype=torch.float64), 2)
    assert MochaLinear().validate(state, Upload(torch.zeros(2))) is None
    assert "3 coordinates" in (MochaLinear().validate(state, Upload(torch.zeros(3))) or "")


def test_points_are_learnt() -> None:
    result = simulate(points_problem(), MochaLinear(), SimulationConfig(rounds=6))
    assert sum(score.metric for score in result.after_update.values()) / 6 > 0.6  # by chance: 1/3


def test_every_example_is_visited_once_an_epoch() -> None:
    algorithm = MochaLinear()
    problem = replace(points_problem(), trainer=Sgd(epochs=3))
    client = client_of(problem, 0, algorithm=algorithm)
    start = problem.start(ROUNDS)
    download = algorithm.configure_client(algorithm.start_server(start), 0, stream(0))
    algorithm.train(client, download, algorithm.start_client(start))
    assert client.effort.gradients == 3 * 12


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="lambda"):
        MochaLinear(lambda_=0.0)
    with pytest.raises(InputError, match="side"):
        MochaLinear(side=0)
