"""L2GD, worked by hand, and what it turns into."""

import pytest

from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.l2gd import Download, L2gd, Memory, State, Upload, pulled
from fedfomo.algorithms.local import Local
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, point, points_problem, scalar_client, scalar_problem

THREE_ROUNDS = SimulationConfig(rounds=3)


def test_a_pull_goes_a_share_of_the_way_to_the_mean() -> None:
    assert pulled(point(0, 8), point(4, 4), 0.25).tolist() == [1.0, 7.0]


def test_a_pull_of_everybody_leaves_the_mean_where_it_is() -> None:
    # Which is why several pulls in a row need one communication.
    models = [point(0), point(3), point(6)]
    assert sum(pulled(model, point(3), 0.5).item() for model in models) / 3 == 3.0


def test_the_mean_is_that_of_everybodys_latest_model() -> None:
    state = L2gd().aggregate(State({}, point(9)), {1: Upload(point(4)), 0: Upload(point(0))})
    assert state.mean.tolist() == [2.0]
    later = L2gd().aggregate(state, {1: Upload(point(10)), 2: Upload(point(2))})
    assert later.mean.tolist() == [4.0]  # 0 of client 0 still counts
    assert L2gd().aggregate(later, {}) is later


def test_two_rounds_of_two_clients() -> None:
    # Halfway to 8 and to −4: 4 and −2, mean 1. Pulled by a half: 2.5 and −0.5. Halfway again: 5.25 and −2.25,
    # mean 1.5, pulled: 3.375 and −0.375.
    models = simulate(scalar_problem([(8.0, 0.0), (-4.0, 0.0)]), L2gd(pull=0.5), SimulationConfig(rounds=2)).models
    assert (models[0].item(), models[1].item()) == (3.375, -0.375)


def test_without_a_pull_it_is_local_training() -> None:
    problem = points_problem()
    alone, pulled_not = (simulate(problem, algorithm, THREE_ROUNDS) for algorithm in (Local(), L2gd(pull=0.0)))
    assert digest(pulled_not.models, pulled_not.after_training) == digest(alone.models, alone.after_training)


def test_pulled_all_the_way_it_is_fedavg_among_clients_of_one_size() -> None:
    problem = points_problem()
    averaged, pulled_home = (simulate(problem, algorithm, THREE_ROUNDS) for algorithm in (FedAvg(), L2gd(pull=1.0)))
    assert digest(pulled_home.models, pulled_home.after_training) == digest(averaged.models, averaged.after_training)


def test_who_cannot_train_moves_to_the_mean_all_the_same() -> None:
    client = scalar_client(target=None, train_target=None)
    personal = L2gd(pull=0.25).personalise(client, Download(point(4)), Memory(point(0)))
    assert (personal.model.item(), personal.memory.own.item()) == (1.0, 1.0)


def test_a_pull_beyond_the_mean_is_refused() -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        L2gd(pull=1.5)
