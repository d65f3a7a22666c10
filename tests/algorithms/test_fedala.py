"""Learnt blends of the own and the global model, worked by hand."""

from dataclasses import replace

import pytest
import torch

from fedfomo.algorithms.fedala import FedAla, Memory, blend, next_weights
from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import client_of, digest, point, points_problem, with_batch_norm
from two_layer_model import sum_problem


def test_a_blend_lies_between_the_two() -> None:
    # 1 + (3 − 1) · 0.25.
    assert blend(point(1), point(3), point(0.25)).tolist() == [1.5]


def test_a_blend_of_one_or_nothing_is_exact() -> None:
    own, received = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
    assert torch.equal(blend(own, received, torch.ones(1000)), received)
    assert torch.equal(blend(own, received, torch.zeros(1000)), own)


def test_weights_descend_and_stay_between_nothing_and_one() -> None:
    # 0.5 − 1 · 0.05 · 2; 0.5 − 0.5 · 2 < 0; 0.5 + 1 · 2 > 1; a gap of 0 has no say.
    weights = next_weights(point(0.5, 0.5, 0.5, 0.5), point(0.05, 0.5, -1, 9), point(2, 2, 2, 0), rate=1.0)
    assert weights.tolist() == pytest.approx([0.4, 0.0, 1.0, 0.5])


@pytest.mark.parametrize(("rate", "weight"), [(1.0, 0.0), (0.01, 0.44)])
def test_the_head_is_blended_and_the_body_taken(rate: float, weight: float) -> None:
    # The own head is 4, the global model (1, 0), the target 8. At W = 1 the gradient is 2(1 + 0 − 8) = −14, the gap
    # 0 − 4, so W = 1 − rate · 56, and the head 4 + (0 − 4) W.
    client = client_of(sum_problem([(8.0,)]), 0)
    memory = Memory(point(9, 4), point(1), has_blended=True)
    personal = FedAla(eta=rate).personalise(client, Download(point(1, 0)), memory)
    assert personal.memory.weights.tolist() == pytest.approx([weight])
    assert personal.model.tolist() == pytest.approx([1.0, 4 - 4 * weight])
    trained = FedAla(eta=rate).train(client, Download(point(1, 0)), personal.memory)
    # Both layers then move by half of the gap, so that the sum is 8.
    assert float(trained.model.sum()) == pytest.approx(8.0)
    assert torch.equal(trained.upload.model, trained.model)


@pytest.mark.parametrize(("first_epochs", "epochs"), [(5, 5), (20, 11)])
def test_the_first_weights_are_learnt_until_ten_losses_are_alike(first_epochs: int, epochs: int) -> None:
    # With a rate of 0 all losses are the same, which is seen as soon as there are more than ten.
    client = client_of(sum_problem([(8.0,)]), 0)
    algorithm = FedAla(eta=0.0, first_epochs=first_epochs)
    first = algorithm.personalise(client, Download(point(1, 2)), algorithm.start_client(client.start))
    assert client.effort.gradients == epochs
    assert first.memory.has_blended
    algorithm.personalise(client, Download(point(5, 6)), first.memory)
    assert client.effort.gradients == epochs + 1


def test_weights_are_learnt_on_a_share_of_the_examples() -> None:
    client = client_of(sum_problem([range(10)]), 0)
    FedAla(share=0.8).personalise(client, Download(point(1, 2)), Memory(point(0, 0), point(1), has_blended=True))
    assert client.effort.gradients == 8


def test_equal_models_leave_nothing_to_learn() -> None:
    client = client_of(sum_problem([(8.0,)]), 0)
    personal = FedAla().personalise(client, Download(point(1, 0)), Memory(point(9, 0), point(0.5), has_blended=False))
    assert client.effort.gradients == 0
    assert personal.model.tolist() == [1.0, 0.0]
    assert not personal.memory.has_blended


def test_who_has_no_training_data_takes_the_global_model() -> None:
    problem = sum_problem([(), (8.0,)])
    models = simulate(problem, FedAla(), SimulationConfig(rounds=2)).models
    assert torch.equal(models[0], simulate(problem, FedAvg(), SimulationConfig(rounds=2)).models[0])


def test_buffers_are_the_global_models() -> None:
    problem = points_problem(build=with_batch_norm)
    client = client_of(problem, 0)
    received = problem.initial + torch.arange(len(problem.initial)) / 1000
    personal = FedAla(blended_layers=3).personalise(
        client, Download(received), FedAla(blended_layers=3).start_client(client.start)
    )
    assert torch.equal(personal.model[client.num_trainable :], received[client.num_trainable :])


def test_weights_that_stay_at_one_make_it_fedavg() -> None:
    for problem in (points_problem(), points_problem(build=with_batch_norm)):
        plain = simulate(problem, FedAvg(), SimulationConfig(rounds=3))
        blended = simulate(problem, FedAla(eta=0.0, first_epochs=1), SimulationConfig(rounds=3))
        assert digest(blended.models) == digest(plain.models)
        assert blended.after_training == plain.after_training


def test_one_client_gets_its_own_model_back() -> None:
    problem = points_problem(num_clients=1)
    alone = simulate(problem, FedAvg(), SimulationConfig(rounds=3)).models
    assert digest(simulate(problem, FedAla(), SimulationConfig(rounds=3)).models) == digest(alone)


def test_what_is_blended_depends_on_the_trainers_batches_alone() -> None:
    # Ten examples in batches of 3: ⌈8/3⌉ steps, and the same weights however often it is asked.
    problem = sum_problem([range(10)])
    client = client_of(replace(problem, trainer=replace(problem.trainer, batch_size=3)), 0)
    memory = Memory(point(0, 0), point(1), has_blended=True)
    algorithm = FedAla(eta=0.01)
    weights = {float(algorithm.personalise(client, Download(point(1, 2)), memory).memory.weights) for _ in range(3)}
    assert len(weights) == 1


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"blended_layers": 0}, "'blended_layers' .* must be at least 1"),
        ({"eta": -1.0}, "'eta' .* must be at least 0"),
        ({"share": 0.0}, "'share' .* must be above 0 and at most 1"),
        ({"first_epochs": 0}, "'first_epochs' .* must be at least 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        FedAla(**options)  # type: ignore[arg-type]
