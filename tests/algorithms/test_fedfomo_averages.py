"""FedFomo on model averages, worked by hand."""

import pytest

from fedfomo.algorithms.fedfomo import EvaluationWeights, Memory, State, Upload
from fedfomo.algorithms.fedfomo.averages import FedFomoAverages, leave_one_out_weights, member_of
from fedfomo.algorithms.fedfomo.core import mixing_weights
from fedfomo.core.rng import stream
from fedfomo.core.vectors import mix
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import ids, numbers, point, scalar_client, scalar_problem, start_of

MEMBERS = (0.0, 3.0, 6.0)

FAR = Memory(point(50), point(50), EvaluationWeights.none())


def after_one_round(values: tuple[float, ...] = MEMBERS) -> State:
    uploads = {n: Upload(point(x), EvaluationWeights.none()) for n, x in enumerate(values)}
    return FedFomoAverages().aggregate(State.start(len(values)), uploads)


def test_a_member_whose_absence_hurts_weighs_more_than_nothing() -> None:
    # Loss (x − 1)²; the average is 3 (loss 4); without each member it is 4.5 (12.25), 3 (4), 1.5 (0.25).
    weights = leave_one_out_weights(numbers(12.25, 4.0, 0.25), 4.0)
    assert weights.tolist() == [8.25, 0.0, -3.75]
    assert mixing_weights(weights).tolist() == [1.0, 0.0, 0.0]
    assert mix(point(3), [point(x) for x in MEMBERS], mixing_weights(weights)).tolist() == [0.0]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_an_average_without_a_finite_loss_weighs_nothing(loss: float) -> None:
    assert leave_one_out_weights(numbers(loss, 5.0), 4.0).tolist() == [0.0, 1.0]
    assert leave_one_out_weights(numbers(1.0, 5.0), loss).tolist() == [0.0, 0.0]


def test_a_client_receives_the_average_and_each_average_without_one() -> None:
    download = FedFomoAverages().configure_client(after_one_round(), 0, stream(0))
    assert download.ids[0].item() == 0  # its own upload is a member
    assert sorted(download.ids.tolist()) == [0, 1, 2]
    assert download.models[0].item() == 3.0
    without = {0: 4.5, 1: 3.0, 2: 1.5}
    assert [a.item() for a in download.models[1:]] == [without[n] for n in download.ids.tolist()]


def test_the_update_starts_from_the_average_and_moves_to_whom_it_misses() -> None:
    client = scalar_client(target=1.0)
    algorithm = FedFomoAverages()
    download = algorithm.configure_client(after_one_round(), 0, stream(0))
    personal = algorithm.personalise(client, download, FAR)
    assert personal.model.tolist() == [0.0]
    found = dict(zip(personal.memory.findings.ids.tolist(), personal.memory.findings.increments.tolist(), strict=True))
    assert found == {0: 8.25, 1: 0.0, 2: -3.75}


def test_without_a_positive_weight_the_model_is_the_average() -> None:
    # Of two equal members neither is missed.
    client = scalar_client(target=1.0)
    algorithm = FedFomoAverages()
    download = algorithm.configure_client(after_one_round((3.0, 3.0)), 0, stream(0))
    assert algorithm.personalise(client, download, FAR).model.tolist() == [3.0]


def test_two_helpful_members_share_by_how_much_they_are_missed() -> None:
    # Members 0, 4, 8 and target 4: the average 4 has loss 0; without them 6 (4), 4 (0), 2 (4): shares ½, 0, ½.
    client = scalar_client(target=4.0)
    algorithm = FedFomoAverages()
    download = algorithm.configure_client(after_one_round((0.0, 4.0, 8.0)), 0, stream(0))
    personal = algorithm.personalise(client, download, FAR)
    assert sorted(personal.memory.findings.increments.tolist()) == [0.0, 4.0, 4.0]
    assert personal.model.tolist() == [0.5 * 0 + 0.5 * 8]


def test_the_member_left_out_is_what_the_averages_differ_by() -> None:
    # 3 · 3 − 2 · 4.5 = 0, 3 · 3 − 2 · 3 = 3, 3 · 3 − 2 · 1.5 = 6.
    assert [member_of(point(3), point(x), 3).item() for x in (4.5, 3.0, 1.5)] == list(MEMBERS)


def test_before_anybody_has_uploaded_a_client_keeps_its_model() -> None:
    algorithm = FedFomoAverages()
    download = algorithm.configure_client(algorithm.start_server(start_of(3, 0)), 0, stream(0))
    assert download.models == ()
    memory = Memory(point(7), point(7), EvaluationWeights(ids(1), numbers(2.0), numbers(1.0)))
    personal = algorithm.personalise(scalar_client(target=1.0), download, memory)
    assert personal.model.tolist() == [7.0]
    assert personal.memory.findings.ids.tolist() == []  # an old finding is not reported twice


def test_who_has_nothing_to_judge_by_takes_the_average() -> None:
    algorithm = FedFomoAverages()
    download = algorithm.configure_client(after_one_round(), 0, stream(0))
    memory = FAR
    assert algorithm.personalise(scalar_client(target=None), download, memory).model.tolist() == [3.0]


def test_a_newcomer_receives_averages_of_the_others_alone() -> None:
    uploads = {n: Upload(point(x), EvaluationWeights.none()) for n, x in ((1, 2.0), (2, 4.0))}
    state = FedFomoAverages().aggregate(State.start(3), uploads)
    download = FedFomoAverages().configure_client(state, 0, stream(0))
    assert sorted(download.ids.tolist()) == [1, 2]
    assert download.models[0].item() == 3.0


def test_a_whole_run_of_two_clients() -> None:
    # Both train from 0: to 4 and to −4. Average 0; without 0: −4; without 1: 4. Client 0 judges by 8:
    # losses 64 | 144, 16; weights 80, −48: it takes its own model.
    result = simulate(scalar_problem([(8.0, 8.0), (-8.0, -8.0)]), FedFomoAverages(), SimulationConfig(rounds=1))
    assert {n: model.item() for n, model in result.models.items()} == {0: 4.0, 1: -4.0}


def test_impossible_options_are_refused_in_words() -> None:
    with pytest.raises(InputError, match=r"'num_downloads' .* must be at least 1, not 0"):
        FedFomoAverages(num_downloads=0)
    with pytest.raises(InputError, match=r"'epsilon' .* must be between 0 and 1, not 2"):
        FedFomoAverages(epsilon=2.0)
    with pytest.raises(InputError, match=r"'epsilon_decay' .* must be at least 0"):
        FedFomoAverages(epsilon_decay=-1.0)


def test_a_lone_uploader_goes_on_from_its_own_model() -> None:
    # Nobody can be left out of an average of one: 0 → 4 → 6 → 7, as if alone.
    result = simulate(scalar_problem([(8.0, 8.0)]), FedFomoAverages(), SimulationConfig(rounds=3))
    assert result.models[0].item() == 7.0
