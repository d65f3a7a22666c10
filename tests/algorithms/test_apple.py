"""APPLE, worked by hand, and what it turns into."""

import pytest
import torch

from fedfomo.algorithms.apple import (
    Apple,
    Download,
    Memory,
    State,
    Upload,
    combine,
    initial_weights,
    penalty_schedule,
)
from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.local import Local
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, ids, numbers, point, points_problem, scalar_client, scalar_problem, start_of

NOBODY = Download(ids(), numbers(), ())


def test_initial_weights_are_shares_of_examples() -> None:
    assert initial_weights(numbers(1, 3)).tolist() == [0.25, 0.75]
    assert initial_weights(numbers(0, 0)).tolist() == [0.5, 0.5]


def test_cores_are_combined_by_any_weights_and_statistics_by_positive_ones() -> None:
    # Trainable: 2 · 3 − 1 · 5 = 1. The statistic: 4 alone, since the other weight is negative.
    cores = torch.stack([point(3, 4), point(5, 8)])
    assert combine(cores, numbers(2, -1), num_trainable=1).tolist() == [1.0, 4.0]


def test_caution_ends_after_its_share_of_the_rounds() -> None:
    # Half a cosine over 4 of 40 rounds: 1, …, 0.5 in the middle, 0 at the end.
    assert penalty_schedule(0, 40, 0.1) == 1.0
    assert penalty_schedule(2, 40, 0.1) == pytest.approx(0.5)
    assert penalty_schedule(4, 40, 0.1) == 0.0
    assert penalty_schedule(0, 40, 0.0) == 0.0


def test_a_step_on_core_and_weights() -> None:
    # Own core 4, another 0, p⁰ = p = (0.5, 0.5) by examples: the combination 2 has the gradient 2(2 − 8) = −12.
    # Core: 4 + 0.25/0.5 · 0.5 · 12 = 7. Weights: 0.5 + 0.01 · 4 · 12 = 0.98 and 0.5 + 0. New: 0.98 · 7 = 6.86.
    client = scalar_client(target=None, train_target=8.0)
    download = Download(ids(1), numbers(1), (point(0),))
    algorithm = Apple(weight_rate=0.01, cautious_share=0.0)
    trained = algorithm.train(client, download, Memory(point(4), numbers(0, 0)))
    assert trained.upload.core.tolist() == [7.0]
    assert trained.memory.changes.tolist() == pytest.approx([0.48, 0.0])
    assert trained.model.tolist() == pytest.approx([6.86])
    paper = Apple(weight_rate=0.01, cautious_share=0.0, full_steps=False)
    assert paper.train(client, download, Memory(point(4), numbers(0, 0))).upload.core.tolist() == [5.5]


def test_weights_are_held_to_the_initial_ones_at_first() -> None:
    # Nothing to learn at the target: p − p⁰ = (0.4, −0.5) shrinks by 0.1 · 2 · λ(1), λ(1) = (cos(π/2) + 1)/2 = 0.5.
    client = scalar_client(target=None, train_target=9.0, round=1)  # of 4
    algorithm = Apple(weight_rate=0.1, mu=2.0, cautious_share=0.5)
    memory = Memory(point(10), numbers(0.4, -0.5))
    trained = algorithm.train(client, Download(ids(1), numbers(1), (point(0),)), memory)  # 0.9 · 10 + 0 · 0
    assert trained.memory.changes.tolist() == pytest.approx([0.36, -0.45])


def test_new_clients_join_with_their_initial_weight() -> None:
    client = scalar_client(target=None, train_target=8.0)
    memory = Memory(point(6), numbers(0.1, 0, 0))
    alone = Apple().personalise(client, NOBODY, memory).model
    assert alone.item() == pytest.approx(1.1 * 6)
    joined = Apple().personalise(client, Download(ids(1, 2), numbers(1, 2), (point(0), point(4))), memory).model
    assert joined.item() == pytest.approx(0.35 * 6 + 0.25 * 0 + 0.5 * 4)


def test_who_has_no_examples_takes_the_others() -> None:
    client = scalar_client(target=None, train_target=None)
    download = Download(ids(1, 2), numbers(1, 3), (point(0), point(4)))
    assert Apple().personalise(client, download, Memory(point(9), numbers(0, 0, 0))).model.tolist() == [3.0]
    assert Apple().personalise(client, NOBODY, Memory(point(9), numbers(0, 0, 0))).model.tolist() == [9.0]


def test_everybody_else_is_sent_and_absent_clients_keep_their_core() -> None:
    state = Apple().aggregate(State({}), {0: Upload(point(1), 5), 2: Upload(point(3), 6)})
    state = Apple().aggregate(state, {0: Upload(point(2), 5)})
    download = Apple().configure_client(state, 0, stream(0))
    assert (download.ids.tolist(), download.num_examples.tolist()) == ([2], [6.0])
    assert [core.item() for core in Apple().configure_client(state, 1, stream(0)).cores] == [2.0, 3.0]
    assert Apple().aggregate(state, {}) == state
    assert Apple().start_server(start_of(3, 0.0)) == State({})


def test_alone_and_with_fixed_weights_it_is_local_training() -> None:
    problem = points_problem(num_clients=1)
    alone = simulate(problem, Local(), SimulationConfig(rounds=3))
    found = simulate(problem, Apple(weight_rate=0.0), SimulationConfig(rounds=3))
    assert digest(found.models, found.after_training) == digest(alone.models, alone.after_training)


def test_with_fixed_weights_and_one_step_a_round_it_is_fedavg() -> None:
    problem = scalar_problem([(8.0, 0.0), (-4.0, 0.0)])
    averaged = simulate(problem, FedAvg(), SimulationConfig(rounds=3)).models
    assert digest(simulate(problem, Apple(weight_rate=0.0), SimulationConfig(rounds=3)).models) == digest(averaged)


def test_weights_find_the_clients_that_help() -> None:
    # Clients 0 and 1 want the same, client 2 the opposite.
    problem = scalar_problem([(8.0, 0.0), (8.0, 0.0), (-8.0, 0.0)])
    models = simulate(problem, Apple(weight_rate=0.01), SimulationConfig(rounds=8)).models
    assert models[0].item() > 4 > 0 > models[2].item()


def test_nonsense_is_refused() -> None:
    with pytest.raises(InputError, match="weight_rate"):
        Apple(weight_rate=-1.0)
    with pytest.raises(InputError, match="cautious_share"):
        Apple(cautious_share=2.0)


def test_the_model_of_a_client_that_has_left_is_handed_out_no_more() -> None:
    algorithm, core = Apple(), Upload(point(1), 2)
    state = algorithm.forget_clients(State({0: core, 1: core, 2: core}), {0, 2})
    assert algorithm.configure_client(state, 0, stream(0)).ids.tolist() == [2]
