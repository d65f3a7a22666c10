"""DPFL: rewards, the double greedy search, and who averages with whom."""

import math
from collections.abc import Sequence

import pytest
import torch

from fedfomo.algorithms.dpfl import (
    Collaborators,
    Download,
    Dpfl,
    Memory,
    State,
    Upload,
    chance_to_add,
    double_greedy,
    reward,
)
from fedfomo.algorithms.local import Local
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import digest, ids, point, points_problem, scalar_client, scalar_problem, start_of


def test_rewards_fall_with_the_loss() -> None:
    assert (reward(0.0), reward(2.5), reward(12.0)) == (1.0, 0.75, -0.2)


def test_the_chance_to_add_weighs_gains() -> None:
    assert chance_to_add(0.3, 0.1) == pytest.approx(0.75)
    assert chance_to_add(0.3, -5.0) == 1.0
    assert chance_to_add(-0.3, 0.1) == 0.0
    assert chance_to_add(-0.3, -0.1) == 1.0  # neither is a gain


def test_helpful_candidates_join_and_harmful_ones_leave() -> None:
    # With worths that add up, joining gains v and leaving gains −v: all with v > 0, nobody with v < 0, for certain.
    values = {0: 1.0, 1: -1.0, 2: 3.0, 3: -0.5}

    def worth(chosen: Sequence[int]) -> float:
        return sum(values[n] for n in chosen)

    assert double_greedy([0, 1, 2, 3], worth, 10, stream(0)) == [0, 2]
    assert double_greedy([3, 2, 1, 0], worth, 10, stream(0)) == [2, 0]
    assert double_greedy([0, 1, 2, 3], worth, 1, stream(0)) == [0]  # the budget is spent
    assert double_greedy([], worth, 10, stream(0)) == []


def test_doubtful_candidates_join_by_chance() -> None:
    # Either of two is worth 1, both or none 0: joining the small set and leaving the large one both gain 1.
    def worth(chosen: Sequence[int]) -> float:
        return float(len(chosen) == 1)

    outcomes = [double_greedy([0, 1], worth, 2, stream(seed)) for seed in range(40)]
    assert {tuple(outcome) for outcome in outcomes} == {(0,), (1,)}


@pytest.mark.parametrize("round", range(5))
def test_a_client_averages_with_whom_its_validation_data_choose(round: int) -> None:
    # Own 0, others 8 and −8, target 4: the mean of 0 and 8 is 4. In either order the search ends with 8 alone.
    client = scalar_client(4.0, 8.0, id=2, round=round)
    download = Download(ids(0, 1), (point(8), point(-8)), None, 0)
    personal = Dpfl().personalise(client, download, Memory(point(0), point(0), ids()))
    assert (personal.model.item(), personal.memory.collaborators.tolist()) == (4.0, [0])
    trained = Dpfl().train(client, download, personal.memory)  # halfway from 4 to 8
    assert (trained.upload.model.item(), trained.upload.collaborators.tolist()) == (6.0, [0])


def test_a_client_without_a_model_averages_others_alone() -> None:
    # Nothing is worth 0; 8 is worth (10 − 1)/10 to the target 9, and −8 a great deal less.
    download = Download(ids(0, 1), (point(8), point(-8)), None, 0)
    personal = Dpfl().personalise(scalar_client(9.0), download, Memory(None, point(0), ids()))
    assert personal.model.item() == 8.0


def test_without_validation_data_all_are_alike() -> None:
    download = Download(ids(0, 1), (point(3), point(6)), None, 0)
    personal = Dpfl().personalise(scalar_client(None), download, Memory(point(0), point(0), ids()))
    assert personal.model.item() == 3.0
    assert sorted(personal.memory.collaborators.tolist()) == [0, 1]
    assert len(Dpfl(budget=1).personalise(scalar_client(None), download, personal.memory).memory.collaborators) == 1


def test_between_choices_a_client_averages_with_the_same_set() -> None:
    # The mean of two collaborators is 5, and the own model 2: (2 · 5 + 2)/3 = 4.
    download = Download(ids(), (), point(5), 2)
    personal = Dpfl().personalise(scalar_client(None), download, Memory(point(2), point(2), ids(3, 4)))
    assert (personal.model.item(), personal.memory.collaborators.tolist()) == (4.0, [3, 4])


def test_whoever_chose_nobody_goes_on_alone() -> None:
    download = Download(ids(), (), None, 0)
    personal = Dpfl().personalise(scalar_client(None), download, Memory(point(2), point(9), ids()))
    assert personal.model.item() == 2.0


def state_after(rounds: int) -> State:
    models = {0: point(0), 1: point(1), 2: point(2), 3: point(7)}
    return State(models, {0: Collaborators(ids(1, 3)), 1: Collaborators(ids())}, rounds)


def test_the_server_sends_candidates_when_it_is_time_to_choose() -> None:
    # Rounds 1, 5, 9, …: collaborators first, then others at random, never oneself.
    algorithm = Dpfl(refresh_every=4, num_candidates=2)
    for rounds in (1, 5):
        assert algorithm.configure_client(state_after(rounds), 0, stream(0)).candidates.tolist() == [1, 3]
    sent = Dpfl(refresh_every=4).configure_client(state_after(1), 0, stream(0))
    assert sent.candidates.tolist() == [1, 3, 2]
    assert [model.item() for model in sent.models] == [1.0, 7.0, 2.0]
    drawn = {
        tuple(algorithm.configure_client(state_after(1), 1, stream(seed)).candidates.tolist()) for seed in range(40)
    }
    assert drawn == {(a, b) for a in (0, 2, 3) for b in (0, 2, 3) if a != b}


def test_the_server_sends_the_collaborators_mean_otherwise() -> None:
    algorithm = Dpfl(refresh_every=4)
    for rounds in (2, 3, 4):
        sent = algorithm.configure_client(state_after(rounds), 0, stream(0))
        assert sent.mean is not None
        assert (sent.mean.item(), sent.num_in_mean, len(sent.models)) == (4.0, 2, 0)
        assert algorithm.configure_client(state_after(rounds), 1, stream(0)).mean is None  # chose nobody
        assert len(algorithm.configure_client(state_after(rounds), 2, stream(0)).models) == 3  # has not chosen yet


def test_models_and_choices_are_kept() -> None:
    algorithm = Dpfl()
    state = algorithm.aggregate(state_after(3), {1: Upload(point(5), ids(0))})
    assert (state.round, state.models[1].item(), state.collaborators[1].ids.tolist()) == (4, 5.0, [0])
    assert state.collaborators[0].ids.tolist() == [1, 3]
    empty = algorithm.start_server(start_of(2, 0.0))
    assert algorithm.aggregate(empty, {}) == State({}, {}, 1)


def test_collaborators_without_a_model_are_refused() -> None:
    algorithm = Dpfl()
    assert algorithm.validate(state_after(3), Upload(point(5), ids(0, 3))) is None
    assert (
        algorithm.validate(state_after(3), Upload(point(5), ids(0, 4)))
        == "'collaborators' names client 4, who has no model"
    )


def test_the_model_of_a_client_that_has_left_is_handed_out_no_more() -> None:
    algorithm = Dpfl(refresh_every=4)
    search, between = (algorithm.forget_clients(state_after(rounds), {0, 1, 2}) for rounds in (1, 2))
    assert algorithm.configure_client(search, 0, stream(0)).candidates.tolist() == [1, 2]
    sent = algorithm.configure_client(between, 0, stream(0))
    assert sent.mean is not None
    assert (sent.mean.item(), sent.num_in_mean) == (1.0, 1)
    # Client 0 still names 3, whom it chose before: that is no fault of its own, and does not bring 3 back.
    named = Upload(point(5), ids(1, 3))
    assert algorithm.validate(between, named) is None
    after = algorithm.forget_clients(algorithm.aggregate(between, {0: named}), {0, 1, 2})
    assert after.collaborators[0].ids.tolist() == [1]
    assert algorithm.validate(after, named) is None
    assert algorithm.validate(after, Upload(point(5), ids(4))) is not None


def test_alone_it_is_local_training() -> None:
    problem, plan = points_problem(num_clients=1), SimulationConfig(rounds=3)
    assert digest(simulate(problem, Dpfl(), plan).models) == digest(simulate(problem, Local(), plan).models)


def test_a_whole_run_of_two_kinds() -> None:
    # Round 1: 0 → 4, 4 and −4. Then 0 and 1 average with each other, and 2 with nobody: 4 → 6, −4 → −6.
    problem = scalar_problem([(8.0, 8.0), (8.0, 8.0), (-8.0, -8.0)])
    result = simulate(problem, Dpfl(), SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == {0: 6.0, 1: 6.0, 2: -6.0}


def test_impossible_options_are_refused() -> None:
    for name in ("budget", "num_candidates", "refresh_every"):
        with pytest.raises(InputError, match=rf"'{name}' .* must be at least 1, not 0"):
            Dpfl(**{name: 0})
    assert torch.equal(Dpfl().start_client(start_of(2, 3.0)).mixture, point(3))


def test_a_broken_model_is_worth_less_than_nobody() -> None:
    assert reward(math.nan) == reward(math.inf) < reward(1e6)

    def worth(members: Sequence[int]) -> float:
        return reward(math.nan if 7 in members else 1.0 if members else 10.0)

    for seed in range(3):
        assert 7 not in double_greedy([1, 7, 5, 2], worth, 4, stream(seed))


def test_lists_of_collaborators_are_bounded_and_without_repeats() -> None:
    state = State({0: point(0), 1: point(1)}, {}, 1)
    for chosen, fits in (((0, 1), True), ((0, 0), False), ((1,) * 1000, False), ((5,), False)):
        fault = Dpfl().validate(state, Upload(point(0), ids(*chosen)))
        assert (fault is None) == fits
