"""A common body and own heads, worked by hand."""

from dataclasses import replace

import pytest
import torch

from fedfomo.algorithms.fedrep import FedRep, Memory, Representation, Upload
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import HALFWAY, client_of, point, points_problem, scalar_problem, with_batch_norm
from two_layer_model import sum_problem

ONE_AND_ONE = replace(HALFWAY, epochs=2)
ALGORITHM = FedRep(body_epochs=1)


def test_first_the_head_moves_then_the_body() -> None:
    # Towards 8: the head goes halfway, (0, 4); then the body, from a gap of 4, (2, 4).
    client = client_of(sum_problem([(8.0,)], ONE_AND_ONE), 0)
    personal = ALGORITHM.personalise(client, Representation(point(0)), Memory(point(0, 0)))
    assert personal.model.tolist() == [0.0, 4.0]
    trained = ALGORITHM.train(client, Representation(point(0)), personal.memory)
    assert trained.model.tolist() == [2.0, 4.0]
    assert trained.upload.body.tolist() == [2.0]


def test_a_whole_round_of_two_clients() -> None:
    # (2, 4) and (−1, −2): the bodies' mean is 0.5. Then heads are fitted to it: 4 + (8 − 4.5)/2 and −2 + (−4 + 1.5)/2.
    models = simulate(sum_problem([(8.0,), (-4.0,)], ONE_AND_ONE), ALGORITHM, SimulationConfig(rounds=1)).models
    assert (models[0].tolist(), models[1].tolist()) == ([0.5, 5.75], [0.5, -3.25])


def test_bodies_count_by_their_examples() -> None:
    uploads = {1: Upload(point(8), 1), 0: Upload(point(0), 3), 2: Upload(point(99), 0)}
    assert ALGORITHM.aggregate(Representation(point(5)), uploads).body.tolist() == [2.0]


def test_a_round_without_uploads_keeps_the_body() -> None:
    state = Representation(point(5))
    assert ALGORITHM.aggregate(state, {}) is state
    assert ALGORITHM.aggregate(state, {0: Upload(point(8), 0)}) is state


def test_a_body_of_another_size_is_refused() -> None:
    assert ALGORITHM.validate(Representation(point(5)), Upload(point(1), 1)) is None
    fault = ALGORITHM.validate(Representation(point(5)), Upload(point(1, 2), 1))
    assert fault == "'body' has 2 coordinates where 1 are shared"


def test_each_half_leaves_the_other_where_it_is() -> None:
    problem = points_problem(build=with_batch_norm)  # 2·100 + 100 + 200 in the body, 303 in the head, then buffers
    client = client_of(problem, 0)
    head, buffers = slice(500, 803), slice(803, None)
    body = torch.cat((problem.initial[:500], problem.initial[buffers]))
    personal = FedRep().personalise(client, Representation(body), Memory(problem.initial))
    assert torch.equal(personal.model[:500], problem.initial[:500])
    assert not torch.equal(personal.model[head], problem.initial[head])
    trained = FedRep().train(client, Representation(body), personal.memory)
    assert torch.equal(trained.model[head], personal.model[head])
    assert not torch.equal(trained.model[:500], personal.model[:500])
    assert torch.equal(trained.upload.body, torch.cat((trained.model[:500], trained.model[buffers])))


def test_a_round_takes_as_many_epochs_as_others_and_at_least_one_for_the_head() -> None:
    for epochs, body_epochs, of_head, total in ((5, 2, 3, 5), (5, 1, 4, 5), (2, 3, 1, 2), (1, 1, 1, 2)):
        client = client_of(sum_problem([(8.0,)], replace(HALFWAY, epochs=epochs)), 0)
        algorithm = FedRep(body_epochs=body_epochs)
        personal = algorithm.personalise(client, Representation(point(0)), Memory(point(0, 0)))
        assert client.effort.gradients == of_head
        algorithm.train(client, Representation(point(0)), personal.memory)
        assert client.effort.gradients == total


def test_where_all_layers_are_the_head_everybody_trains_alone() -> None:
    # One step towards 8 in each of two rounds and at the end: 4, 6, 7. The body has no coordinates.
    problem = replace(scalar_problem([(8.0, 0.0), (-8.0, 0.0)]), trainer=ONE_AND_ONE)
    models = simulate(problem, ALGORITHM, SimulationConfig(rounds=2)).models
    assert (models[0].item(), models[1].item()) == (7.0, -7.0)


def test_who_has_no_training_data_uses_the_common_body() -> None:
    problem = sum_problem([(), (8.0,)], ONE_AND_ONE)
    assert simulate(problem, ALGORITHM, SimulationConfig(rounds=1)).models[0].tolist() == [2.0, 0.0]


@pytest.mark.parametrize("option", ["body_epochs", "head_layers"])
def test_what_cannot_be_is_refused(option: str) -> None:
    with pytest.raises(InputError, match=rf"'{option}' .* must be at least 1"):
        FedRep(**{option: 0})
