"""IFCA: choosing by losses, averaging by choice, and where the models come from."""

import pytest
import torch

from fedfomo.algorithms.fedavg import FedAvg, Upload
from fedfomo.algorithms.ifca import Choice, Download, Ifca, State, best_model
from fedfomo.core.client import Client
from fedfomo.core.rng import stream
from fedfomo.core.round import run_round, sample_clients
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import (
    InProcess,
    digest,
    federation_of,
    numbers,
    point,
    points_problem,
    scalar_client,
    scalar_problem,
    start_of,
)


def chosen(cluster: int, x: float, num_examples: int = 1) -> Choice:
    return Choice(cluster, Upload(point(x), num_examples))


def test_the_best_model_has_the_least_loss() -> None:
    assert best_model(numbers(3, 1, 2), stream(0)) == 1
    assert best_model(numbers(torch.nan, 5, torch.inf), stream(0)) == 1


def test_ties_are_broken_at_random() -> None:
    assert {best_model(numbers(1, 2, 1), stream(seed)) for seed in range(20)} == {0, 2}
    assert {best_model(numbers(torch.nan, torch.nan), stream(seed)) for seed in range(20)} == {0, 1}


def test_training_picks_by_training_data_and_use_by_validation_data() -> None:
    # The client trains towards 8 and judges by −3. Of 6 and −4, it trains 6, to (6 + 8)/2 = 7, and uses −4.
    client, models = scalar_client(-3.0, 8.0), (point(6), point(-4))
    assert client.training_losses(models).tolist() == [4.0, 144.0]
    choice = Ifca().train(client, Download(models), None).upload
    assert (choice.cluster, choice.trained.model.item(), choice.trained.num_examples) == (0, 7.0, 1)
    assert Ifca().personalise(client, Download(models), None).model.item() == -4.0


@pytest.mark.parametrize(
    ("client", "expected"), [(scalar_client(None, 8.0), {6.0}), (scalar_client(None, None), {6.0, -4.0})]
)
def test_without_validation_data_training_data_choose_and_without_any_chance(
    client: Client, expected: set[float]
) -> None:
    assert Ifca().personalise(client, Download((point(6), point(-4))), None).model.item() in expected


def test_models_are_averaged_over_those_who_chose_them_all_alike() -> None:
    # Model 0: (1 + 3)/2 = 2, although one has nine times the examples. Model 1 was chosen by nobody.
    state = State((point(0), point(5)), True, 1, None)
    after = Ifca(2).aggregate(state, {0: chosen(0, 1.0, 9), 1: chosen(0, 3.0, 1)})
    assert [model.item() for model in after.models] == [2.0, 5.0]


def test_the_first_round_seeds_the_models_with_clients_far_apart() -> None:
    # Everybody trains 0 once. Of 4, 5, −4 and 20, with mean 6.25: take 5, then 20 (15 away), then −4 (9 away).
    algorithm = Ifca(3)
    state = algorithm.start_server(start_of(4, 0.0))
    assert len(algorithm.configure_client(state, 0, stream(0)).models) == 1
    uploads = {n: chosen(0, x) for n, x in enumerate((4.0, 5.0, -4.0, 20.0))}
    after = algorithm.aggregate(state, uploads)
    assert [model.item() for model in after.models] == [5.0, -4.0, 20.0]
    assert after.is_seeded


def test_with_few_clients_a_round_models_wait_until_there_are_enough() -> None:
    # Two of ten clients a round, and three clusters: the first two are held, and sent is the initial model still.
    algorithm = Ifca(3)
    first = algorithm.aggregate(algorithm.start_server(start_of(10, 0.0)), {4: chosen(0, 4.0), 5: chosen(0, 5.0)})
    assert not first.is_seeded
    assert algorithm.configure_client(first, 1, stream(0)).models == (point(0),)
    # Who comes again counts once, with its latest model. Of 6, 5 and −4, with mean 2⅓: take 5, −4, and 6.
    second = algorithm.aggregate(first, {4: chosen(0, 6.0), 8: chosen(0, -4.0)})
    assert second.is_seeded
    assert [model.item() for model in second.models] == [6.0, 5.0, -4.0]
    assert second.waiting == {}
    third = algorithm.aggregate(second, {0: chosen(2, -6.0)})
    assert [model.item() for model in third.models] == [6.0, 5.0, -6.0]


def test_clients_that_never_answer_are_not_awaited_for_ever() -> None:
    # Two of four clients have data: once both have uploaded twice, these two are all.
    algorithm = Ifca(3)
    state = algorithm.start_server(start_of(4, 0.0))
    for is_seeded in (False, True):
        state = algorithm.aggregate(state, {0: chosen(0, 4.0), 1: chosen(0, -4.0)})
        assert state.is_seeded == is_seeded
    assert [model.item() for model in state.models] == [4.0, -4.0]


def test_a_client_that_comes_again_does_not_end_the_wait_alone() -> None:
    # Client 0 twice, client 1 once: three uploads of two clients, which chance may explain.
    algorithm = Ifca(3)
    state = algorithm.aggregate(algorithm.start_server(start_of(9, 0.0)), {0: chosen(0, 4.0), 1: chosen(0, -4.0)})
    state = algorithm.aggregate(state, {0: chosen(0, 5.0)})
    assert not state.is_seeded
    assert algorithm.aggregate(state, {2: chosen(0, 8.0)}).is_seeded


def test_few_clients_a_round_still_come_to_all_clusters() -> None:
    problem = points_problem(num_clients=12)
    plan = SimulationConfig(rounds=3, participation=0.25)
    federation, sizes = federation_of(problem, Ifca(5)), list[int]()
    state = Ifca(5).start_server(problem.start(3))
    exchange = InProcess(problem, Ifca(5))
    for t in range(plan.rounds):
        cohort = sample_clients(12, plan.participation, problem.seed, t)
        state = run_round(federation, state, t, cohort, exchange).state
        sizes.append(len(state.models))
    assert sizes[0] == 1
    assert sizes[-1] == 5


def test_a_client_that_has_left_seeds_no_model() -> None:
    algorithm = Ifca(3)
    state = algorithm.aggregate(algorithm.start_server(start_of(10, 0.0)), {4: chosen(0, 4.0), 5: chosen(0, 5.0)})
    assert list(algorithm.forget_clients(state, range(5)).waiting) == [4]


def test_a_shared_body_is_that_of_all_who_waited() -> None:
    algorithm = Ifca(2, share_body=True)
    state = State((point(0, 0),), False, 2, point(0, 1), num_members=4)
    state = algorithm.aggregate(state, {0: Choice(0, Upload(point(1, 10), 1))})
    after = algorithm.aggregate(state, {1: Choice(0, Upload(point(3, 20), 1))})
    assert [model.tolist() for model in after.models] == [[2.0, 10.0], [2.0, 20.0]]


def test_a_round_without_uploads_seeds_nothing() -> None:
    algorithm = Ifca(3)
    state = algorithm.start_server(start_of(4, 0.0))
    assert algorithm.aggregate(state, {}) is state


def test_a_whole_run_of_two_kinds() -> None:
    # Round 1: 0 → 4 and −4, which become the models. Round 2: 4 → 6 and −4 → −6. Targets decide who uses which.
    problem = scalar_problem([(8.0, 8.0), (-8.0, -8.0), (8.0, -8.0), (-8.0, 8.0)])
    result = simulate(problem, Ifca(2), SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == {0: 6.0, 1: -6.0, 2: -6.0, 3: 6.0}


def test_a_shared_body_is_averaged_over_all_and_heads_over_members() -> None:
    # The last coordinate is the head: bodies average (1 + 3 + 8)/3 = 4; heads (10 + 20)/2 = 15 and 60.
    state = State((point(0, 0), point(0, 0)), True, 2, point(0, 1))
    uploads = {
        0: Choice(0, Upload(point(1, 10), 1)),
        1: Choice(0, Upload(point(3, 20), 1)),
        2: Choice(1, Upload(point(8, 60), 1)),
    }
    after = Ifca(2, share_body=True).aggregate(state, uploads)
    assert [model.tolist() for model in after.models] == [[4.0, 15.0], [4.0, 60.0]]


def test_the_head_is_the_last_layer() -> None:
    problem = points_problem()
    head = Ifca(share_body=True).start_server(problem.start(3)).head
    assert head is not None
    assert int(head.sum()) == 3 * 200 + 3  # of the linear map from 200 units to 3 classes
    assert bool((head[-603:] == 1).all())


def test_one_cluster_is_fedavg() -> None:
    # Clients have equally many examples here; by their number or all alike, the averages differ by rounding only.
    problem, plan = points_problem(), SimulationConfig(rounds=3)
    average = simulate(problem, FedAvg(), plan).models[0]
    for seeding in ("clients", "random"):
        model = simulate(problem, Ifca(1, seeding=seeding), plan).models[0]
        assert torch.allclose(model, average, rtol=0, atol=1e-6)


def test_random_models_are_all_there_from_the_start() -> None:
    problem = points_problem()
    state = Ifca(3, seeding="random").start_server(problem.start(3))
    assert len(state.models) == 3
    assert torch.equal(state.models[0], problem.initial)
    assert len({digest({0: model}) for model in state.models}) == 3


def test_clusters_that_do_not_exist_are_refused() -> None:
    state = State((point(0), point(5)), True, 1, None)
    assert Ifca(2).validate(state, chosen(1, 1.0)) is None
    assert Ifca(2).validate(state, chosen(2, 1.0)) == "there is no cluster 2"


def test_more_clusters_than_clients_are_as_many_as_there_are() -> None:
    result = simulate(scalar_problem([(8.0, 8.0), (-8.0, -8.0)]), Ifca(5), SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == {0: 6.0, 1: -6.0}


def test_downloads_hold_all_models() -> None:
    state = State((point(0), point(5)), True, 1, None)
    assert Ifca(2).configure_client(state, 0, stream(0)) == Download(state.models)


def test_no_clusters_are_refused() -> None:
    with pytest.raises(InputError, match=r"'num_clusters' .* must be at least 1, not 0"):
        Ifca(0)
