"""CFL: norms, cosines, splits, and clusters that split again."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch

from fedfomo.algorithms.cfl import Cfl, Download, State, bipartition, separation_of, update_norms
from fedfomo.algorithms.clustering import cosines
from fedfomo.algorithms.fedavg import FedAvg, Upload
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, point, points_problem, scalar_client, start_of

ALWAYS = Cfl(thresholds="absolute", epsilon_1=0.5, epsilon_2=0.9, first_split=0.0)
"""Splits from the first round on, if the mean update is shorter than 0.5 and one of them longer than 0.9."""


def answers(state: State, updates: Mapping[int, Sequence[float]]) -> dict[int, Upload]:
    """Return the uploads of clients that change their clusters' models by these updates."""
    return {n: Upload(state.clusters.model_for(n) + point(*update), 1) for n, update in updates.items()}


def groups(state: State) -> set[frozenset[int]]:
    return {frozenset(state.clusters.members(cluster)) for cluster in range(len(state.clusters.models))}


def sets(*members: Sequence[int]) -> set[frozenset[int]]:
    return {frozenset(cluster) for cluster in members}


def test_norms_of_the_mean_and_of_the_largest_update() -> None:
    # The mean of (3, 4) and (3, −4) is (3, 0): length 3; each is 5 long.
    assert update_norms([point(3, 4), point(3, -4)]) == (3.0, 5.0)


def test_a_split_leaves_the_least_similarity_across() -> None:
    # A chain 0–1–2 of similar neighbours, and 3 apart from all: the largest similarity across any other cut is 0.8.
    similarities = torch.tensor(
        [[1.0, 0.9, 0.1, 0.0], [0.9, 1.0, 0.8, 0.0], [0.1, 0.8, 1.0, 0.3], [0.0, 0.0, 0.3, 1.0]], dtype=torch.float64
    )
    assert bipartition(similarities, "single") == [0, 0, 0, 1]
    # Complete linkage sees 2 far from 0, so nearer to 3.
    assert bipartition(similarities, "complete") == [0, 0, 1, 1]


def test_three_splits_in_succession() -> None:
    # Four kinds of clients, spread over the ids: kinds 0 and 1 first part from 2 and 3, then each pair parts.
    # The second and third split are inside clusters whose positions are not their clients' ids.
    algorithm, state = ALWAYS, ALWAYS.start_server(start_of(8, 0.0, 0.0))
    kinds = [0, 2, 1, 3, 2, 0, 3, 1]
    first = {0: (1.0, 0.2), 1: (1.0, -0.2), 2: (-1.0, 0.2), 3: (-1.0, -0.2)}
    state = algorithm.aggregate(state, answers(state, {n: first[kind] for n, kind in enumerate(kinds)}))
    assert groups(state) == sets([0, 2, 5, 7], [1, 3, 4, 6])
    # Now kinds 2 and 3 (clients 1, 4 and 3, 6) disagree; kinds 0 and 1 both want to go on.
    second = {0: (1.0, 0.0), 1: (1.0, 0.0), 2: (0.0, 1.0), 3: (0.0, -1.0)}
    state = algorithm.aggregate(state, answers(state, {n: second[kind] for n, kind in enumerate(kinds)}))
    assert groups(state) == sets([0, 2, 5, 7], [1, 4], [3, 6])
    third = {0: (0.0, 1.0), 1: (0.0, -1.0), 2: (1.0, 0.0), 3: (1.0, 0.0)}
    state = algorithm.aggregate(state, answers(state, {n: third[kind] for n, kind in enumerate(kinds)}))
    assert groups(state) == sets([0, 5], [2, 7], [1, 4], [3, 6])
    # Kind 0 went (1, 0.2), (1, 0) and (0, 1), averaged with kind 1 in round 2; kind 3 (−1, −0.2), (0, −1), (1, 0).
    assert state.clusters.model_for(5).tolist() == pytest.approx([2.0, 1.0])
    assert state.clusters.model_for(2).tolist() == pytest.approx([2.0, -1.0])
    assert state.clusters.model_for(4).tolist() == pytest.approx([0.0, 1.0])
    assert state.clusters.model_for(6).tolist() == pytest.approx([0.0, -1.0])


def test_halves_go_on_from_the_model_they_had_in_common() -> None:
    # Both halves start at 0: clients 0 and 1 average 1 and 1, clients 2 and 3 average −1 and −1.
    state = ALWAYS.start_server(start_of(4, 0.0))
    state = ALWAYS.aggregate(state, answers(state, {0: [1], 1: [1], 2: [-1], 3: [-1]}))
    assert [state.clusters.model_for(n).item() for n in range(4)] == [1.0, 1.0, -1.0, -1.0]
    assert [model.item() for model in state.ancestors] == [0.0]


@pytest.mark.parametrize(
    ("updates", "why"),
    [
        ({0: [1.0], 1: [1.0], 2: [-0.4]}, "the mean, 0.53, still moves"),
        ({0: [0.8], 1: [-0.8], 2: [0.0]}, "nobody wants to move far"),
        ({0: [1.0], 1: [-1.0]}, "two are too few, and one was never heard of"),
    ],
)
def test_what_stays_whole(updates: dict[int, list[float]], why: str) -> None:
    state = ALWAYS.start_server(start_of(3, 0.0))
    assert groups(ALWAYS.aggregate(state, answers(state, updates))) == sets([0, 1, 2]), why


def test_relative_thresholds_need_no_scale() -> None:
    # Round 1 moves by 1·s on average. Round 2: the mean is 0.2·s < 0.8·s, and 0.2/1 < 0.8/2.2, whatever the scale s.
    algorithm = Cfl(first_split=0.0)
    for scale in (1e-3, 1.0, 1e3):
        state = algorithm.start_server(start_of(4, 0.0))
        state = algorithm.aggregate(state, answers(state, {n: [scale] for n in range(4)}))
        assert groups(state) == sets([0, 1, 2, 3])
        assert state.first_norm == pytest.approx(scale)
        opposed = {0: [scale], 1: [scale], 2: [-0.6 * scale], 3: [-0.6 * scale]}
        state = algorithm.aggregate(state, answers(state, opposed))
        assert groups(state) == sets([0, 1], [2, 3])


def test_relative_thresholds_look_at_both_conditions() -> None:
    algorithm = Cfl(epsilon_1=0.8, epsilon_2=2.0)
    assert algorithm._disagree(0.3, 1.0, first_norm=1.0)  # 0.3 < 0.8 and 0.3 < 0.4
    assert not algorithm._disagree(0.5, 1.0, first_norm=1.0)  # 0.5 > 0.4
    assert not algorithm._disagree(0.3, 1.0, first_norm=0.3)  # 0.3 > 0.24


def test_nothing_is_split_before_its_time() -> None:
    # Four rounds are planned: with a quarter to wait, the first split can be in the second.
    algorithm = replace(ALWAYS, first_split=0.25)
    state = algorithm.start_server(start_of(4, 0.0))
    opposed = {0: [1.0], 1: [1.0], 2: [-1.0], 3: [-1.0]}
    state = algorithm.aggregate(state, answers(state, opposed))
    assert len(state.clusters.models) == 1
    assert len(algorithm.aggregate(state, answers(state, opposed)).clusters.models) == 2


def test_latest_updates_count_for_absent_members() -> None:
    # Clients 0 and 1 answer, then 2 and 3: once all are known, the four of them disagree.
    state = ALWAYS.start_server(start_of(4, 0.0))
    state = ALWAYS.aggregate(state, answers(state, {0: [1.0], 1: [1.0]}))
    assert groups(state) == sets([0, 1, 2, 3])
    state = ALWAYS.aggregate(state, answers(state, {2: [-1.0], 3: [-1.0]}))
    assert groups(state) == sets([0, 1], [2, 3])
    # Both halves start from the model of round 2, which 0 and 1 had moved to 1.
    assert [state.clusters.model_for(n).item() for n in range(4)] == [1.0, 1.0, 0.0, 0.0]


def test_who_is_never_heard_of_holds_a_split_up_but_not_for_ever() -> None:
    # Client 4 never answers. Half of the four planned rounds pass; in the third it goes with the larger half.
    state = ALWAYS.start_server(start_of(6, 0.0))
    opposed = {0: [1.0], 1: [1.0], 2: [1.0], 3: [-1.0], 5: [-1.0]}
    for _ in range(2):
        state = ALWAYS.aggregate(state, answers(state, opposed))
        assert len(state.clusters.models) == 1
    assert groups(ALWAYS.aggregate(state, answers(state, opposed))) == sets([0, 1, 2, 4], [3, 5])


def test_clients_may_choose_among_all_models_by_validation() -> None:
    algorithm = Cfl(select_by_validation=True)
    download = Download(point(0), (point(3), point(5)))
    assert algorithm.personalise(scalar_client(4.5), download, None).model.item() == 5.0
    assert algorithm.personalise(scalar_client(1.5), download, None).model.item() == 0.0  # a tie: its own cluster's
    assert algorithm.personalise(scalar_client(None), download, None).model.item() == 0.0


def test_whoever_may_choose_is_sent_clusters_and_their_ancestors() -> None:
    algorithm = replace(ALWAYS, select_by_validation=True)
    state = algorithm.start_server(start_of(4, 0.0))
    state = algorithm.aggregate(state, answers(state, {0: [1.0], 1: [1.0], 2: [-1.0], 3: [-1.0]}))
    sent = algorithm.configure_client(state, 2, torch.Generator())
    assert (sent.model.item(), [model.item() for model in sent.others]) == (-1.0, [1.0, 0.0])
    assert ALWAYS.configure_client(state, 2, torch.Generator()).others == ()


def test_without_splits_it_is_fedavg() -> None:
    problem, plan = points_problem(), SimulationConfig(rounds=3)
    never = simulate(problem, Cfl(epsilon_1=0.0), plan)
    assert digest(never.models) == digest(simulate(problem, FedAvg(), plan).models)


def test_a_round_without_uploads_changes_no_model() -> None:
    state = ALWAYS.start_server(start_of(3, 2.0))
    after = ALWAYS.aggregate(state, {})
    assert after.clusters.models[0] is state.clusters.models[0]
    assert (after.round, after.first_norm) == (1, 0.0)


def test_impossible_options_are_refused() -> None:
    for options in ({"epsilon_1": -1.0}, {"epsilon_2": 0.0}, {"first_split": 2.0}, {"wait": -0.5}):
        with pytest.raises(InputError, match=next(iter(options))):
            Cfl(**options)


def test_halves_must_differ_to_be_parted() -> None:
    # Two pairs that point apart: 1 within, −1 across. Four that are nearly at right angles: nothing to part.
    assert separation_of(cosines([point(1, 0), point(1, 0), point(-1, 0), point(-1, 0)]), [0, 0, 1, 1]) == 2.0
    assert separation_of(torch.eye(4, dtype=torch.float64), [0, 0, 1, 1]) == 0.0
    assert separation_of(cosines([point(1, 0), point(0, 1), point(0, 1)]), [1, 0, 0]) == 1.0


def test_by_default_a_cluster_is_split_by_the_papers_rule_alone() -> None:
    # Cosines are 1 within the pairs and 0.6 across: too little to part by, if halves must differ by ½.
    updates = {0: [0.0, 1.0], 1: [0.0, 1.0], 2: [0.8, 0.6], 3: [0.8, 0.6]}
    for separation, number in ((Cfl().separation, 2), (0.5, 1)):
        algorithm = replace(ALWAYS, epsilon_1=0.9, separation=separation)
        state = algorithm.start_server(start_of(4, 0.0, 0.0))
        assert len(algorithm.aggregate(state, answers(state, updates)).clusters.models) == number
