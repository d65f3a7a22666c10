"""APFL with blended outputs, worked by hand, and what it turns into."""

import pytest
import torch
from torch import nn

from fedfomo.algorithms.apfl import Memory
from fedfomo.algorithms.apfl_logits import ApflLogits, Blend, blended, places
from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.algorithms.local import Local
from fedfomo.core.parameters import Layout
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import Scalar, client_of, point, points_problem, scalar_problem, with_batch_norm

THREE_ROUNDS = SimulationConfig(rounds=3)


def test_outputs_are_blended() -> None:
    blend = Blend(Scalar())
    for parameter, value in ((blend.own.x, 8.0), (blend.shared.x, 0.0), (blend.share, 0.25)):
        nn.init.constant_(parameter, value)
    assert blend(torch.zeros(3, 1)).tolist() == [2.0] * 3


def test_the_parts_of_a_blend_are_found_again_buffers_included() -> None:
    layout = Layout.of(Blend(with_batch_norm()))
    at_own, at_shared, at_share = places(layout)
    size = Layout.of(with_batch_norm()).size
    own, shared = torch.arange(size).float(), -torch.arange(size).float()
    theta = blended(layout, own, shared, 0.25)
    assert torch.equal(theta[at_own], own)
    assert torch.equal(theta[at_shared], shared)
    assert torch.equal(theta[layout.num_trainable :], torch.cat((own[-200:], shared[-200:])))
    assert theta[at_share] == 0.25


def test_a_round_on_a_client() -> None:
    # As for parameters, since a scalar's output is its parameter: v = 4, w = 0, α = 0.5 answer 2, with the
    # slope −12. v = 4 + 0.25 · 0.5 · 12 = 5.5; α = 0.5 + 0.25 · 4 · 12 is clipped to 1; w = 0 + 0.25 · 16 = 4.
    problem = scalar_problem([(8.0, 0.0)])
    client = client_of(problem, 0, algorithm=ApflLogits())
    trained = ApflLogits().train(client, Download(point(0)), Memory(point(4), 0.5))
    assert (trained.memory.own.item(), trained.memory.share, trained.upload.model.item()) == (5.5, 1.0, 4.0)
    fixed = ApflLogits(learns_share=False).train(client, Download(point(0)), Memory(point(4), 0.5))
    assert (fixed.memory.own.item(), fixed.memory.share) == (5.5, 0.5)


def test_at_its_ends_it_is_fedavg_and_local_training() -> None:
    # Not bit for bit: weight decay pulls the share itself towards zero, and 1 · x + 0 · y is another sum than x.
    problem = points_problem()
    for share, plain, part in ((0.0, FedAvg(), "shared"), (1.0, Local(), "own")):
        algorithm = ApflLogits(alpha=share, learns_share=False)
        own, shared, _ = places(problem.model_of(algorithm).layout)
        where = {"own": own, "shared": shared}
        expected = simulate(problem, plain, THREE_ROUNDS).models
        for client, theta in simulate(problem, algorithm, THREE_ROUNDS).models.items():
            assert torch.allclose(theta[where[part]], expected[client], atol=1e-6)


def test_who_cannot_train_uses_the_global_model() -> None:
    problem = scalar_problem([(None, 1.0)])
    client = client_of(problem, 0, algorithm=ApflLogits())
    model = ApflLogits().personalise(client, Download(point(6)), Memory(point(0), 0.5)).model
    assert model[places(client.model.layout)[2]] == 0.0


def test_a_share_beyond_one_is_refused() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        ApflLogits(alpha=-0.5)
