"""MAPPER: mixtures of two networks, trained one part at a time."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.algorithms.local import Local
from fedfomo.algorithms.mapper import Mapper, Memory, Mixture, best_share, interpolate
from fedfomo.core.client import Client
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from toy_problems import (
    ROUNDS,
    client_of,
    digest,
    numbers,
    point,
    points_problem,
    scalar_problem,
    targets,
    with_batch_norm,
)


def fixed(share: float, mix: Any = "outputs") -> Mapper:
    return Mapper(mix, share, share, 1, warm_up=0.0)


def meet(algorithm: Mapper, train: float | None, validation: float | None, round: int = 1) -> Client:
    return client_of(scalar_problem([(train, validation)]), 0, round, algorithm=algorithm)


def answer(client: Client, model: Tensor) -> float:
    """Return what a client's network says at θ, where that is at least 0: its loss for the target 0 is the square."""
    return math.sqrt(client.model.loss(model, targets(0.0)))


def parts(problem: FederatedProblem, algorithm: Mapper, model: Tensor) -> tuple[Tensor, Tensor]:
    layout = problem.model_of(algorithm).layout
    return model[layout.coordinates_below("own")], model[layout.coordinates_below("common")]


def test_probabilities_are_mixed() -> None:
    # Logits (0, ln 3) are (1/4, 3/4), and (0, 0) are (1/2, 1/2). A quarter of the first: (7/16, 9/16).
    linear = nn.Linear(1, 2)
    mixture = Mixture(linear, of_probabilities=True)
    with torch.no_grad():
        mixture.own.weight.zero_()
        mixture.own.bias.copy_(torch.tensor([0.0, math.log(3)]))
        mixture.common.weight.zero_()
        mixture.common.bias.zero_()
        mixture.share.fill_(0.25)
        assert mixture(torch.ones(1, 1)).exp().tolist()[0] == pytest.approx([7 / 16, 9 / 16])


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_part_without_a_share_has_no_say_and_no_gradient(share: float) -> None:
    mixture = Mixture(nn.Linear(1, 2), of_probabilities=True)
    with torch.no_grad():
        mixture.share.fill_(share)
        mixture.common.weight.mul_(-3.0)
    inputs = torch.ones(4, 1)
    used, unused = (mixture.own, mixture.common) if share else (mixture.common, mixture.own)
    assert torch.allclose(mixture(inputs), used(inputs).log_softmax(dim=1))
    nn.functional.cross_entropy(mixture(inputs), torch.zeros(4, dtype=torch.int64)).backward()
    assert bool(torch.isfinite(used.weight.grad).all())
    assert unused.weight.grad.abs().sum().item() == 0.0


def test_parameters_between_two_models() -> None:
    assert interpolate(point(4, 0), point(0, 8), 0.25).tolist() == [1.0, 6.0]


def test_the_best_share() -> None:
    assert best_share([0.0, 0.5, 1.0], numbers(3, 1, 2), 0.5) == 0.5
    assert best_share([0.0, 0.5, 1.0], numbers(1, 2, 1), 0.5) == 0.0
    assert best_share([0.0, 0.5, 1.0], numbers(torch.nan, torch.nan, 1), 0.5) == 1.0
    assert best_share([0.0, 0.5, 1.0], numbers(torch.nan, torch.nan, torch.nan), 0.5) == 0.5


def test_shares_are_evenly_spaced() -> None:
    assert Mapper().shares == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert Mapper(lowest_share=0.25, highest_share=0.75, num_shares=3).shares == [0.25, 0.5, 0.75]


@pytest.mark.parametrize("mix", ["outputs", "parameters"])
def test_both_parts_are_trained_through_the_mixture(mix: str) -> None:
    # Own 0 and common 4 say 2; the target is 8. A step is ¼ · ½ · 2 · gap, a quarter of the gap: own 0 + 6/4.
    # Then they say (1.5 + 4)/2 = 2.75, and common becomes 4 + 5.25/4.
    algorithm = fixed(0.5, mix)
    client = meet(algorithm, 8.0, 8.0)
    trained = algorithm.train(client, Download(point(4)), Memory(point(0), 0.5))
    assert trained.memory.own is not None
    assert trained.memory.own.item() == 1.5
    assert trained.upload.model.item() == 5.3125
    assert answer(client, trained.model) == pytest.approx((1.5 + 5.3125) / 2)


@pytest.mark.parametrize("mix", ["outputs", "parameters"])
@pytest.mark.parametrize(
    ("target", "share", "own", "common"),
    # Own 0, trained with λ = 0, ½ and 1 beside common 4: it stays 0, or becomes 1.5, or 4; they say 4, 2.75 and 4.
    [(3.0, 0.5, 1.5, 5.3125), (4.0, 0.0, 0.0, 6.0)],
)
def test_validation_chooses_the_share(mix: Any, target: float, share: float, own: float, common: float) -> None:
    algorithm = Mapper(mix, num_shares=3, warm_up=0.0)
    trained = algorithm.train(meet(algorithm, 8.0, target), Download(point(4)), Memory(point(0), 0.5))
    assert trained.memory.own is not None
    assert (trained.memory.share, trained.memory.own.item()) == (share, own)
    assert trained.upload.model.item() == common


@pytest.mark.parametrize("mix", ["outputs", "parameters"])
def test_use_takes_the_share_that_validation_likes_now(mix: Any) -> None:
    # Own 0 and common 8, shares 0, ½, 1: they say 8, 4 or 0.
    algorithm = Mapper(mix, num_shares=3)
    for target, said in ((7.0, 8.0), (5.0, 4.0), (-1.0, 0.0)):
        client = meet(algorithm, None, target)
        personal = algorithm.personalise(client, Download(point(8)), Memory(point(0), 0.5))
        assert answer(client, personal.model) == said


def test_without_validation_data_the_share_stays_and_new_ones_are_the_middle() -> None:
    algorithm = Mapper("outputs", num_shares=3, warm_up=0.0)
    client = meet(algorithm, 8.0, None)
    personal = algorithm.personalise(client, Download(point(8)), Memory(point(0), 1.0))
    assert (personal.memory.share, answer(client, personal.model)) == (1.0, 0.0)
    assert algorithm.train(client, Download(point(4)), Memory(point(0), 1.0)).memory.share == 0.5


def test_the_warm_up_trains_the_common_model_alone_and_own_models_start_from_it() -> None:
    # Of four rounds half are warm-up. In round 1 common goes from 4 halfway to 8, and there is no own model yet.
    algorithm = Mapper("outputs", num_shares=3, warm_up=0.5)
    assert ROUNDS == 4
    early = meet(algorithm, 8.0, 8.0, round=1)
    trained = algorithm.train(early, Download(point(4)), algorithm.start_client(early.start))
    assert (trained.memory.own, trained.upload.model.item(), answer(early, trained.model)) == (None, 6.0, 6.0)
    # In round 2 it starts at common's 4, and with all of the say goes halfway to 8.
    trained = algorithm.train(meet(algorithm, 8.0, 8.0, round=2), Download(point(4)), trained.memory)
    assert trained.memory.own is not None
    assert (trained.memory.share, trained.memory.own.item()) == (1.0, 6.0)
    assert trained.upload.model.item() == 4.0  # which leaves common alone


def test_whoever_never_trained_uses_the_common_model() -> None:
    algorithm = Mapper("outputs")
    client = meet(algorithm, None, None)
    personal = algorithm.personalise(client, Download(point(8)), algorithm.start_client(client.start))
    assert answer(client, personal.model) == 8.0


def test_a_share_of_nothing_is_fedavg() -> None:
    # Through logarithms of probabilities rounding differs by parts in 10⁷, and three rounds of steps add up to 10⁻⁵.
    problem, plan = points_problem(), SimulationConfig(rounds=3)
    average = simulate(problem, FedAvg(), plan).models
    algorithm = fixed(0.0, "probabilities")
    for n, model in simulate(problem, algorithm, plan).models.items():
        assert torch.allclose(parts(problem, algorithm, model)[1], average[n], rtol=0, atol=1e-5)
    assert digest(simulate(problem, fixed(0.0, "parameters"), plan).models) == digest(average)


def test_a_share_of_all_is_local_training() -> None:
    problem, plan = points_problem(), SimulationConfig(rounds=3)
    alone = simulate(problem, Local(), plan).models
    algorithm = fixed(1.0, "probabilities")
    for n, model in simulate(problem, algorithm, plan).models.items():
        assert torch.allclose(parts(problem, algorithm, model)[0], alone[n], rtol=0, atol=1e-5)
    assert digest(simulate(problem, fixed(1.0, "parameters"), plan).models) == digest(alone)


def test_each_part_keeps_its_own_statistics() -> None:
    # A client's own BatchNorm statistics must not follow those of the common model, nor the other way round.
    problem = points_problem(build=with_batch_norm)
    algorithm = fixed(0.5, "probabilities")
    client = client_of(problem, 0, 1, algorithm=algorithm)
    trained = algorithm.train(client, Download(problem.initial), Memory(problem.initial, 0.5))
    statistics = slice(problem.model.layout.num_trainable, None)
    assert trained.memory.own is not None
    assert not torch.equal(trained.memory.own[statistics], problem.initial[statistics])
    assert not torch.equal(trained.upload.model[statistics], problem.initial[statistics])
    own, common = parts(problem, algorithm, trained.model)
    assert torch.equal(own, trained.memory.own)
    assert torch.equal(common, trained.upload.model)


@pytest.mark.parametrize("mix", ["probabilities", "parameters"])
def test_effort_counts_every_training(mix: Any) -> None:
    # Shares 0, ½, 1: own is trained for two of them, common once unless λ = 1 was best; 12 examples, 1 epoch.
    problem = points_problem()
    algorithm = Mapper(mix, num_shares=3, warm_up=0.0)
    client = client_of(problem, 0, 1, algorithm=algorithm)
    trained = algorithm.train(client, Download(problem.initial), Memory(problem.initial, 0.0))
    assert client.effort.gradients == 12 * (2 + (trained.memory.share < 1))


def test_impossible_options_are_refused() -> None:
    for options, complaint in (
        ({"lowest_share": 0.8, "highest_share": 0.2}, "lowest_share must be at most highest_share"),
        ({"highest_share": 1.2}, "'highest_share' .* must be between 0 and 1"),
        ({"num_shares": 0}, "'num_shares' .* must be at least 1"),
        ({"warm_up": 2.0}, "'warm_up' .* must be between 0 and 1"),
    ):
        with pytest.raises(InputError, match=complaint):
            Mapper(**options)
