"""FL+HC: distances, cuts, and one clustering in a run."""

from collections.abc import Mapping, Sequence

import pytest

from fedfomo.algorithms.fedavg import FedAvg, Upload
from fedfomo.algorithms.fl_hc import FlHc, State, update_distances, widest_gap
from fedfomo.algorithms.local import Local
from fedfomo.core.round import configure_clients
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import InProcess, digest, federation_of, point, points_problem, run_rounds, scalar_problem, start_of


def answers(state: State, updates: Mapping[int, Sequence[float]]) -> dict[int, Upload]:
    return {n: Upload(state.clusters.model_for(n) + point(*update), 1) for n, update in updates.items()}


def clustered(algorithm: FlHc, updates: Mapping[int, Sequence[float]], num_clients: int) -> list[int]:
    """Return everybody's cluster after one round in which nobody moves, and one of these updates."""
    state = algorithm.start_server(start_of(num_clients, *[0.0] * len(updates[0])))
    state = algorithm.aggregate(state, answers(state, {n: [0.0] * len(updates[0]) for n in range(num_clients)}))
    return algorithm.aggregate(state, answers(state, updates)).clusters.of_client.tolist()


def test_distances_are_in_units_of_the_mean_length() -> None:
    # (3, 4), (−3, 4), (0, 1): Manhattan lengths 7, 7, 1, mean 5; distances 6, 6, 6.
    updates = [point(3, 4), point(-3, 4), point(0, 1)]
    assert update_distances(updates, "l1").tolist() == pytest.approx([6 / 5] * 3)
    # Euclidean lengths 5, 5, 1, mean 11/3; distances 6, √18, √18.
    assert update_distances(updates, "l2").tolist() == pytest.approx([6 * 3 / 11, 18**0.5 * 3 / 11, 18**0.5 * 3 / 11])
    # Cosines 7/25, 4/5, 4/5, between directions of length 1.
    assert update_distances(updates, "cosine").tolist() == pytest.approx([(36 / 25) ** 0.5, 0.4**0.5, 0.4**0.5])


def test_updates_of_nobody_who_moved_are_at_no_distance() -> None:
    assert update_distances([point(0), point(0)], "l1").tolist() == [0.0]


def test_the_widest_gap() -> None:
    assert widest_gap([1.0, 1.1, 5.0, 5.5]) == 2  # below the step from 1.1 to 5
    assert widest_gap([1.0]) == 1
    assert widest_gap([]) == 0


PAIRS = {0: [1.0, 0.0], 1: [0.0, 1.0], 2: [1.0, 0.1], 3: [0.1, 1.0]}


@pytest.mark.parametrize(
    "algorithm",
    [
        FlHc(),
        FlHc(metric="l2", linkage="ward"),
        FlHc(metric="cosine", linkage="complete"),
        FlHc(linkage="single"),
        FlHc(cut="gap"),
        FlHc(num_clusters=2),
    ],
)
def test_clients_that_move_alike_are_clustered(algorithm: FlHc) -> None:
    # Pairs are 0.1 apart, and different pairs about 2 (Manhattan) or 1.4 (Euclidean).
    assert clustered(algorithm, PAIRS, 4) == [0, 1, 0, 1]


def test_a_number_of_clusters_overrides_the_threshold() -> None:
    assert len(set(clustered(FlHc(num_clusters=3, threshold=0.0), PAIRS, 4))) == 3
    assert clustered(FlHc(num_clusters=9), PAIRS, 4) == [0, 1, 2, 3]


def test_clusters_average_apart_from_the_clustering_round_on() -> None:
    # Warm-up: round 1 moves all by 1, to 1. Round 2 clusters: 1 ± 1. Round 3: each goes on from there.
    algorithm = FlHc(threshold=0.5)
    state = algorithm.start_server(start_of(4, 0.0))
    state = algorithm.aggregate(state, answers(state, {n: [1.0] for n in range(4)}))
    assert (len(state.clusters.models), len(state.updates)) == (1, 4)
    state = algorithm.aggregate(state, answers(state, {0: [1.0], 1: [1.0], 2: [-1.0], 3: [-1.0]}))
    assert [model.item() for model in state.clusters.models] == [2.0, 0.0]
    assert (state.is_clustered, len(state.updates)) == (True, 0)
    # One-shot: opposite updates do not split a cluster again.
    state = algorithm.aggregate(state, answers(state, {0: [1.0], 1: [-1.0], 2: [3.0], 3: [5.0]}))
    assert [model.item() for model in state.clusters.models] == [2.0, 4.0]


def test_absent_clients_count_by_their_latest_update() -> None:
    # Client 3 moved with client 2 in round 1, and is absent in round 2.
    algorithm = FlHc(threshold=0.5)
    state = algorithm.start_server(start_of(4, 0.0))
    state = algorithm.aggregate(state, answers(state, {0: [1.0], 1: [1.0], 2: [-1.0], 3: [-1.0]}))
    state = algorithm.aggregate(state, answers(state, {0: [1.0], 1: [1.0], 2: [-1.0]}))
    assert state.clusters.of_client.tolist() == [0, 0, 1, 1]


def test_who_is_never_heard_of_is_not_waited_for_endlessly() -> None:
    # Of four planned rounds two pass in waiting; in the third, client 4 is put into the largest cluster.
    algorithm = FlHc(threshold=0.5)
    state = algorithm.start_server(start_of(5, 0.0))
    for _ in range(2):
        state = algorithm.aggregate(state, answers(state, {0: [1.0], 1: [-1.0], 2: [-1.0], 3: [-1.0]}))
        assert not state.is_clustered
    state = algorithm.aggregate(state, answers(state, {0: [1.0], 1: [-1.0], 2: [-1.0], 3: [-1.0]}))
    assert state.clusters.of_client.tolist() == [0, 1, 1, 1, 1]


def test_without_any_upload_nothing_is_ever_clustered() -> None:
    algorithm = FlHc()
    state = algorithm.start_server(start_of(3, 2.0))
    for _ in range(4):
        state = algorithm.aggregate(state, {})
    assert (state.is_clustered, state.clusters.models[0].item()) == (False, 2.0)


def test_with_a_threshold_beyond_all_it_is_fedavg() -> None:
    problem, plan = points_problem(), SimulationConfig(rounds=4)
    whole = simulate(problem, FlHc(threshold=1e9), plan)
    assert digest(whole.models) == digest(simulate(problem, FedAvg(), plan).models)


def test_with_a_threshold_of_zero_it_is_local_training_after_the_warm_up() -> None:
    # One round of FedAvg, then everybody goes on alone from the global model: an average of one is that one.
    problem = points_problem()
    alone = simulate(problem, FlHc(threshold=0.0), SimulationConfig(rounds=3)).models
    state, _ = run_rounds(problem, FedAvg(), InProcess(problem, FedAvg()), [range(6)])
    exchange = InProcess(problem, Local())
    exchange.memories = {n: type(Local().start_client(problem.start(3)))(state.model) for n in range(6)}
    for t in (1, 2):
        exchange(t, configure_clients(federation_of(problem, Local()), None, t, range(6)))
    assert digest(alone) == digest({n: memory.own for n, memory in exchange.memories.items()})


def test_one_client_is_one_cluster() -> None:
    # Halfway to 8 three times: 4, 6, 7.
    assert simulate(scalar_problem([(8.0, 8.0)]), FlHc(), SimulationConfig(rounds=3)).models[0].item() == 7.0


def test_impossible_options_are_refused() -> None:
    for options, complaint in (
        ({"warm_up": 2.0}, "'warm_up' .* must be between 0 and 1"),
        ({"wait": -1.0}, "'wait' .* must be between 0 and 1"),
        ({"linkage": "ward"}, "ward needs the metric l2 or cosine"),
        ({"threshold": -1.0}, "'threshold' .* must be at least 0"),
        ({"num_clusters": -1}, "'num_clusters' .* must be at least 0"),
    ):
        with pytest.raises(InputError, match=complaint):
            FlHc(**options)
