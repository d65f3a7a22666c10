"""Per-FedAvg, worked by hand, and its Hessian-free step against the exact product."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedfomo.algorithms.fedavg import Download, FedAvg, State, Upload
from fedfomo.algorithms.per_fedavg import PerFedAvg, hessian_product, roles, stepped
from fedfomo.core.data import ClientData
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from toy_problems import (
    HALFWAY,
    client_of,
    digest,
    point,
    points,
    points_problem,
    scalar_client,
    scalar_problem,
    targets,
)

TWO_ROUNDS = SimulationConfig(rounds=2)


def test_a_step_leaves_buffers_alone() -> None:
    assert stepped(point(1, 2, 9), point(4, -4), 0.5).tolist() == [-1, 4, 9]


def test_a_first_order_meta_step() -> None:
    # From 0 towards 8: ahead is 0 − 0.25 · 2(0 − 8) = 4, the gradient there 2(4 − 8) = −8, so w = 0 + 0.25 · 8 = 2.
    client = scalar_client(target=None, train_target=8.0)
    trained = PerFedAvg(alpha=0.25).train(client, Download(point(0)), None)
    assert trained.upload.model.tolist() == [2.0]


def test_a_hessian_free_meta_step() -> None:
    # The same, but the Hessian is 2: the gradient shrinks to (1 − 0.25 · 2) · −8 = −4, so w = 1.
    client = scalar_client(target=None, train_target=8.0)
    trained = PerFedAvg(variant="hessian-free", alpha=0.25).train(client, Download(point(0)), None)
    assert trained.upload.model.tolist() == pytest.approx([1.0], abs=1e-4)  # float32 gradients, differenced


def test_the_exact_hessian_product_is_met() -> None:
    module = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))
    model = Model(module)
    problem = replace(points_problem(), model=model, initial=model.read(), trainer=Sgd(weight_decay=0.01))
    client = client_of(problem, 0)
    batch = problem.clients[0].train
    theta = model.read()
    direction = torch.randn(len(theta), generator=stream(0))
    found = hessian_product((client.descent(), client.descent()), theta, direction, batch)

    def loss(vector: torch.Tensor) -> torch.Tensor:
        outputs = torch.func.functional_call(module, model.layout.views(vector), (batch.inputs,))
        return nn.functional.cross_entropy(outputs, batch.labels) + 0.01 / 2 * (vector**2).sum()

    _, exact = torch.autograd.functional.hvp(loss, theta, direction)
    assert torch.linalg.vector_norm(found - exact) < 1e-3 * torch.linalg.vector_norm(exact)


def test_there_is_no_curvature_along_nothing() -> None:
    client = scalar_client(target=None, train_target=8.0)
    probes = client.descent(), client.descent()
    assert hessian_product(probes, point(1), point(0), client.data.train).tolist() == [0.0]


def test_batches_are_dealt_out_in_roles() -> None:
    batches = [targets(float(n)) for n in range(5)]

    def dealt(num_roles: int) -> list[list[float]]:
        return [[batch.labels.item() for batch in deal] for deal in roles(iter(batches), num_roles)]

    assert dealt(2) == [[0, 1, 1], [2, 3, 3], [4, 4, 4]]
    assert dealt(3) == [[0, 1, 2], [3, 4, 4]]
    assert list(roles(iter([]), 2)) == []


def test_personalising_takes_steps_on_the_own_training_data() -> None:
    # One pass over one example: 0 − 0.125 · 2(0 − 8) = 2, then 2 − 0.125 · 2(2 − 8) = 3.5.
    client = scalar_client(target=-100.0, train_target=8.0)
    for epochs, expected in ((1, 2.0), (2, 3.5)):
        algorithm = PerFedAvg(alpha=0.125, personal_epochs=epochs)
        assert algorithm.personalise(client, Download(point(0)), None).model.tolist() == [expected]


def test_without_training_data_the_global_model_is_used() -> None:
    client = scalar_client(target=3.0, train_target=None)
    assert PerFedAvg().personalise(client, Download(point(5)), None).model.tolist() == [5.0]


def test_every_client_counts_the_same() -> None:
    state = PerFedAvg().aggregate(State(point(9)), {1: Upload(point(4), 7), 0: Upload(point(0), 1)})
    assert state.model.tolist() == [2.0]
    assert PerFedAvg().aggregate(state, {}).model is state.model


def test_with_an_inner_step_of_zero_it_is_fedavg_with_half_the_steps() -> None:
    # A step takes two batches: as many steps as FedAvg's take twice the epochs.
    problem = scalar_problem([(8.0, 0.0), (-4.0, 0.0)])
    averaged = simulate(problem, FedAvg(), TWO_ROUNDS).models
    twice = replace(problem, trainer=replace(HALFWAY, epochs=2))
    assert digest(simulate(twice, PerFedAvg(alpha=0.0), TWO_ROUNDS).models) == digest(averaged)
    thrice = replace(problem, trainer=replace(HALFWAY, epochs=3))
    hessian_free = PerFedAvg(variant="hessian-free", alpha=0.0)
    assert digest(simulate(thrice, hessian_free, TWO_ROUNDS).models) == digest(averaged)


def test_with_an_inner_step_of_zero_it_is_gradient_descent_on_every_second_batch() -> None:
    problem = replace(points_problem(), trainer=Sgd(batch_size=3, epochs=2))
    client = client_of(problem, 2)
    trained = PerFedAvg(alpha=0.0).train(client, Download(problem.initial), None).upload.model
    theta, descent = problem.initial.clone(), client.descent()
    for number, batch in enumerate(descent.batches()):
        if number % 2:
            theta[: client.num_trainable].sub_(descent.gradient(theta, batch), alpha=client.learning_rate)
    assert torch.equal(trained, theta)


def test_a_round_costs_as_much_as_fedavgs() -> None:
    examples = points(12, 0, stream(0))
    model = points_problem().model
    data = ClientData(examples, examples, examples)
    problem = FederatedProblem(model, model.read(), [data], Sgd(batch_size=2, epochs=4), 0)  # 24 batches of 2
    for variant, gradients in (("first-order", 48), ("hessian-free", 64)):
        client = client_of(problem, 0)
        PerFedAvg(variant=variant).train(client, Download(problem.initial), None)
        assert client.effort.gradients == gradients


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="alpha"):
        PerFedAvg(alpha=-0.1)
    with pytest.raises(InputError, match="personal_epochs"):
        PerFedAvg(personal_epochs=0)


def test_the_default_is_within_an_eighth_of_the_default_rate() -> None:
    assert PerFedAvg().alpha <= Sgd().learning_rate / 8
