"""Training alone on training and validation data, worked by hand."""

from fedfomo.algorithms.local import Local, LocalAll
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import client_of, digest, points_problem, scalar_problem, targets


def test_a_union_has_all_examples_in_order() -> None:
    joined = targets(1, 2).joined(targets(), targets(3))
    assert joined.labels.tolist() == [1.0, 2.0, 3.0]
    assert joined.inputs.shape == (3, 1)
    assert targets(5).joined().labels.tolist() == [5.0]


def test_both_sets_are_trained_on() -> None:
    # Training wants 8 and validation 0, so the mean loss is least at 4: 0 → 2 → 3.
    result = simulate(scalar_problem([(8.0, 0.0)]), LocalAll(), SimulationConfig(rounds=2))
    assert result.models[0].item() == 3.0
    assert result.traffic.bytes_down == result.traffic.bytes_up == 0


def test_without_validation_data_it_is_local_training() -> None:
    problem = points_problem(sizes=dict.fromkeys(range(6), (12, 0)))
    alone = simulate(problem, Local(), SimulationConfig(rounds=3))
    both = simulate(problem, LocalAll(), SimulationConfig(rounds=3))
    assert digest(both.models) == digest(alone.models)
    assert both.after_training == alone.after_training


def test_validation_data_alone_move_nothing() -> None:
    # A client without training data takes no part in training, here as in every method.
    assert simulate(scalar_problem([(None, 6.0)]), LocalAll(), SimulationConfig(rounds=2)).models[0].item() == 0.0


def test_it_computes_more_by_the_validation_data() -> None:
    client = client_of(points_problem(), 0)
    LocalAll().train(client, None, LocalAll().start_client(client.start))
    assert client.effort.gradients == 12 + 4
