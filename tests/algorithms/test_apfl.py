"""APFL, worked by hand, and what it turns into."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from fedfomo.algorithms.apfl import Apfl, Memory, blend, next_share
from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.algorithms.local import Local
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import client_of, digest, perceptron, point, points_problem, scalar_client, with_batch_norm

THREE_ROUNDS = SimulationConfig(rounds=3)


def test_a_blend_is_a_weighted_mean() -> None:
    assert blend(point(8, 0), point(0, 4), 0.25).tolist() == [2.0, 3.0]


def test_the_share_grows_where_the_own_model_lowers_the_loss() -> None:
    # ⟨v − w, g⟩ = (3 − 1) · −2 + (0 − 1) · 1 = −5, so 0.3 + 0.1 · 5 = 0.8; the buffer behind does not count.
    assert next_share(0.3, point(3, 0, 7), point(1, 1, 9), point(-2, 1), 0.1) == pytest.approx(0.8)
    assert next_share(0.3, point(3, 0, 7), point(1, 1, 9), point(-2, 1), 1.0) == 1.0
    assert next_share(0.3, point(3, 0, 7), point(1, 1, 9), point(2, -1), 1.0) == 0.0


def test_a_round_on_a_client() -> None:
    # v = 4, w = 0, α = 0.5: the blend 2 has the gradient 2(2 − 8) = −12. α + 0.25 · 4 · 12 is clipped to 1;
    # v = 4 + 0.25 · 0.5 · 12 = 5.5; w = 0 + 0.25 · 16 = 4; and the new blend is v.
    client = scalar_client(target=None, train_target=8.0)
    trained = Apfl().train(client, Download(point(0)), Memory(point(4), 0.5))
    assert (trained.memory.own.item(), trained.memory.share) == (5.5, 1.0)
    assert (trained.upload.model.item(), trained.model.item()) == (4.0, 5.5)
    fixed = Apfl(learns_share=False).train(client, Download(point(0)), Memory(point(4), 0.5))
    assert (fixed.memory.share, fixed.model.item()) == (0.5, (5.5 + 4) / 2)


def test_the_share_is_learnt_once_a_round() -> None:
    # At the start v = w: the first batch of the first round says nothing of α, and the others are not asked.
    problem = points_problem()
    download = Download(problem.initial)
    memory = Apfl().train(client_of(problem, 0), download, Memory(problem.initial, 0.5)).memory
    assert memory.share == 0.5
    assert Apfl().train(client_of(problem, 0, round=1), download, memory).memory.share != 0.5


@pytest.mark.parametrize("build", [perceptron, with_batch_norm])
def test_without_a_share_of_the_own_model_it_is_fedavg(build: Callable[[], nn.Module]) -> None:
    problem = points_problem(build=build)
    averaged = simulate(problem, FedAvg(), THREE_ROUNDS)
    blended = simulate(problem, Apfl(alpha=0.0, learns_share=False), THREE_ROUNDS)
    assert digest(blended.models, blended.after_training) == digest(averaged.models, averaged.after_training)


@pytest.mark.parametrize("build", [perceptron, with_batch_norm])
def test_with_nothing_but_the_own_model_it_is_local_training(build: Callable[[], nn.Module]) -> None:
    problem = points_problem(build=build)
    alone = simulate(problem, Local(), THREE_ROUNDS)
    blended = simulate(problem, Apfl(alpha=1.0, learns_share=False), THREE_ROUNDS)
    assert digest(blended.models, blended.after_training) == digest(alone.models, alone.after_training)


def test_the_global_model_is_fedavgs_whatever_the_share() -> None:
    problem = points_problem()
    expected = client_of(problem, 0).train(problem.initial)
    for share in (0.0, 0.3, 1.0):
        memory = Memory(problem.initial + 0.1, share)
        trained = Apfl().train(client_of(problem, 0), Download(problem.initial), memory)
        assert torch.equal(trained.upload.model, expected)


def test_who_cannot_train_uses_the_global_model() -> None:
    client = scalar_client(target=3.0, train_target=None)
    assert Apfl().personalise(client, Download(point(6)), Memory(point(0), 0.5)).model.tolist() == [6.0]


def test_a_share_beyond_one_is_refused() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        Apfl(alpha=1.5)
