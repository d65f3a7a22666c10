"""FedAMP: who is attracted by whom, and how much."""

from math import exp, log

import pytest
import torch

from fedfomo.algorithms.fedamp import (
    FedAmp,
    State,
    Upload,
    attraction,
    message_weights,
    relative_scale,
    squared_gaps,
)
from fedfomo.algorithms.fedavg import Download
from fedfomo.algorithms.local import Local
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, numbers, point, points_problem, scalar_client, scalar_problem, start_of


def table(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_attraction_fades_with_distance() -> None:
    # e^{−x/2}/2 at 0, 2 and 2 ln 3.
    assert attraction(numbers(0, 2, 2 * log(3)), 2.0).tolist() == pytest.approx([1 / 2, exp(-1) / 2, 1 / 6])


def test_message_weights() -> None:
    # σ = 1 and distances² of ln 4 and ln 10: attractions 1/4 and 1/10. With α = 1/2 that is 1/8 and 1/20.
    gaps = table([0, log(4), log(10)], [log(4), 0, log(10)], [log(10), log(10), 0])
    weights = message_weights(gaps, 0.5, 1.0)
    assert weights[0].tolist() == pytest.approx([1 - 1 / 8 - 1 / 20, 1 / 8, 1 / 20])
    assert weights[2].tolist() == pytest.approx([1 / 20, 1 / 20, 1 - 1 / 10])


def test_others_never_take_more_than_all() -> None:
    # α = 8 would make the first row's others 2 and 0.8; they are scaled down to a sum of 1.
    gaps = table([0, log(4), log(10)], [log(4), 0, log(10)], [log(10), log(10), 0])
    assert message_weights(gaps, 8.0, 1.0)[0].tolist() == pytest.approx([0.0, 2 / 2.8, 0.8 / 2.8])


def test_a_relative_scale_gives_the_most_sociable_its_share() -> None:
    # Distances² 1, 3, 3 (each twice), median 3: σ = 3·sigma. Whatever the unit, nobody takes more than alpha.
    for unit in (1e-4, 1.0, 1e4):
        gaps = unit * table([0, 1, 3], [1, 0, 3], [3, 3, 0])
        alpha, sigma = relative_scale(gaps, alpha=0.6, sigma=0.5)
        assert sigma == pytest.approx(1.5 * unit)
        others = 1 - message_weights(gaps, alpha, sigma).diagonal()
        near, far = exp(-1 / 1.5), exp(-2)
        assert others.tolist() == pytest.approx([0.6, 0.6, 0.6 * 2 * far / (near + far)])


def test_squared_gaps_leave_buffers_out() -> None:
    # (1 − 4)² + (2 − 6)² = 25, whatever the third coordinate.
    assert squared_gaps([point(1, 2, 9), point(4, 6, 0)], 2).tolist() == [[0.0, 25.0], [25.0, 0.0]]


def test_clients_are_sent_their_mixture() -> None:
    # σ = 4/ln 3 makes the attraction of 0 and 2 (distance² 4) ln 3/12; α = 3/ln 3 makes it ξ = 1/4.
    algorithm = FedAmp(scale="absolute", alpha=3 / log(3), sigma=4 / log(3))
    state = algorithm.aggregate(algorithm.start_server(start_of(3, 0.0)), {0: Upload(point(0)), 2: Upload(point(2))})
    assert state.weights.tolist() == [pytest.approx([0.75, 0.25]), pytest.approx([0.25, 0.75])]
    assert algorithm.configure_client(state, 0, stream(0)).model.item() == pytest.approx(0.5)
    assert algorithm.configure_client(state, 2, stream(0)).model.item() == pytest.approx(1.5)
    assert algorithm.configure_client(state, 1, stream(0)).model.item() == 1.0  # never heard of: the plain mean


def test_a_client_uses_what_it_has_trained_and_not_what_it_is_pulled_to() -> None:
    # From u = 2 halfway to 8, at rate ¼ and with the pull still 0: w = 5. It keeps 5 whatever it is sent next.
    client, algorithm = scalar_client(target=None, train_target=8.0), FedAmp(strength=1.0)
    nothing = algorithm.start_client(client.start)
    assert algorithm.personalise(client, Download(point(2)), nothing).model.item() == 2.0
    trained = algorithm.train(client, Download(point(2)), nothing)
    assert (trained.upload.model.item(), trained.model.item()) == (5.0, 5.0)
    assert algorithm.personalise(client, Download(point(-9)), trained.memory).model.item() == 5.0
    # The next training starts from the mixture again: from 4 halfway to 8.
    assert algorithm.train(client, Download(point(4)), trained.memory).model.item() == 6.0


def test_training_is_pulled_back_to_the_mixture() -> None:
    # One step from u leaves no pull yet: u → halfway to the target. With two clients at 0 all is symmetric.
    problem = scalar_problem([(8.0, 8.0), (8.0, 8.0)])
    result = simulate(problem, FedAmp(strength=1.0), SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == {0: 6.0, 1: 6.0}


def test_the_pull_slows_later_steps() -> None:
    # The first step from u is free, 0 → 4; each later one is x ← x − ¼(2(x − 8) + 2(x − 0)) = 4 again.
    problem = scalar_problem([(8.0, 8.0)])
    trainer = type(problem.trainer)(learning_rate=0.25, weight_decay=0.0, learning_rate_decay=1.0, epochs=3)
    slowed = simulate(
        type(problem)(problem.model, problem.initial, problem.clients, trainer, 0),
        FedAmp(strength=2.0),
        SimulationConfig(rounds=1),
    )
    assert slowed.models[0].item() == 4.0


@pytest.mark.parametrize("algorithm", [FedAmp(alpha=0.0, strength=0.0), FedAmp("absolute", 0.0, 1.0, 0.0)])
def test_without_messages_and_pull_it_is_local_training(algorithm: FedAmp) -> None:
    problem, plan = points_problem(), SimulationConfig(rounds=3)
    assert digest(simulate(problem, algorithm, plan).models) == digest(simulate(problem, Local(), plan).models)


def test_equal_models_stay_equal() -> None:
    algorithm = FedAmp()
    state = algorithm.start_server(start_of(3, 0.0))
    state = algorithm.aggregate(state, {n: Upload(point(5)) for n in range(3)})
    assert bool(torch.isfinite(state.weights).all())
    assert algorithm.configure_client(state, 1, stream(0)).model.item() == 5.0


def test_models_infinitely_far_apart_do_not_hear_of_each_other() -> None:
    # Attractions underflow to 0 for all: every client keeps to itself.
    algorithm = FedAmp(sigma=1e-6)
    state = algorithm.aggregate(algorithm.start_server(start_of(2, 0.0)), {0: Upload(point(0)), 1: Upload(point(1))})
    assert state.weights.tolist() == [[1.0, 0.0], [0.0, 1.0]]


def test_before_any_upload_everybody_gets_the_initial_model() -> None:
    algorithm = FedAmp()
    state = algorithm.start_server(start_of(3, 7.0))
    assert algorithm.aggregate(state, {}) is state
    assert algorithm.configure_client(state, 1, stream(0)).model.item() == 7.0


def test_one_client_keeps_its_model() -> None:
    algorithm = FedAmp()
    state = algorithm.aggregate(algorithm.start_server(start_of(1, 0.0)), {0: Upload(point(3))})
    assert isinstance(state, State)
    assert algorithm.configure_client(state, 0, stream(0)).model.item() == 3.0


def test_impossible_options_are_refused() -> None:
    for options in ({"alpha": -1.0}, {"alpha": 1.5}, {"sigma": 0.0}, {"strength": -1.0}):
        with pytest.raises(InputError, match=next(iter(options))):
            FedAmp(**options)
    assert FedAmp(scale="absolute", alpha=1e4).alpha == 1e4
