"""Whose models a client is sent: affinity, ε and the choice itself."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from fedfomo.algorithms.fedfomo import Download, EvaluationWeights, FedFomo, FedFomoAsCoded, Memory, State, Upload
from fedfomo.algorithms.fedfomo.as_coded import affinity_increments
from fedfomo.algorithms.fedfomo.core import choose_downloads, exploration_rate
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from toy_problems import ids, numbers, point, scalar_client, start_of

LATEST = FedFomoAsCoded(norm="l2", affinity_update="raw", num_averages=0, availability="latest")


def choose(affinity: Tensor, available: Sequence[int], num: int, epsilon: float, rng: torch.Generator) -> list[int]:
    """Choose by a row of P that has an entry for everyone."""
    return choose_downloads(affinity, ids(*available), num, epsilon, rng)


def uploads_of(*clients: int) -> dict[int, Upload]:
    """Let clients upload the model x = id and add nothing to P."""
    return {n: Upload(point(n), EvaluationWeights.none()) for n in clients}


def sent_to(algorithm: FedFomo, state: State, client: int, seed: int = 0) -> list[int]:
    return algorithm.configure_client(state, client, stream(seed, "test")).ids.tolist()


def test_affinity_adds_signed_weights_for_whom_was_evaluated_only() -> None:
    state = State.start(4)
    rounds = [
        (ids(1, 2, 3), numbers(0.1, 0.3, -0.2), [1, 0.1, 0.3, -0.2]),
        (ids(2, 3), numbers(-0.4, 0.05), [1, 0.1, 0.3 - 0.4, -0.2 + 0.05]),
        (ids(1), numbers(0.02), [1, 0.1 + 0.02, -0.1, -0.15]),
    ]
    for clients, increments, row in rounds:
        state = FedFomo().aggregate(
            state, {0: Upload(point(0), EvaluationWeights(clients, increments, torch.zeros_like(increments)))}
        )
        assert state.affinity.dense()[0].tolist() == pytest.approx(row)
        assert torch.equal(state.affinity.dense()[1:], torch.eye(4, dtype=torch.float64)[1:])


@pytest.mark.parametrize(
    ("weights", "increments"),
    [
        ([0.1, 0.3, -0.2], [0.1 / 0.2, 0.3 / 0.2, -0.2 / 0.2]),  # sum 0.2
        ([0.1, -0.5, 0.0], [0.1 / 0.4, -0.5 / 0.4, 0.0]),  # sum −0.4: signs are kept
        ([1.0, -0.999, 0.0], [1000.0, -999.0, 0.0]),  # sum 0.001: what nearly cancels blows up
        ([0.5, -0.5], [0.0, 0.0]),  # sum 0: nothing to divide by
    ],
)
def test_normalised_increments_are_divided_by_the_size_of_their_sum(
    weights: list[float], increments: list[float]
) -> None:
    assert affinity_increments(numbers(*weights), "normalised").tolist() == pytest.approx(increments)
    assert affinity_increments(numbers(*weights), "raw").tolist() == weights


@pytest.mark.parametrize(
    ("available", "num", "chosen"),
    [
        ([1, 2, 3, 4, 5], 3, [3, 1, 4]),
        ([2, 4, 5], 3, [4, 5, 2]),  # what is not there is not sent
        ([2, 4], 2, [4, 2]),
        ([1, 2, 3, 4, 5], 10, [3, 1, 4, 5, 2]),  # more than there are: all of them
        ([], 3, []),
    ],
)
def test_without_exploration_the_best_are_sent_in_order(available: list[int], num: int, chosen: list[int]) -> None:
    affinity = numbers(-9, 0.3, -0.2, 0.9, 0.1, 0.0)
    for seed in range(3):
        assert choose(affinity, available, num, 0.0, stream(seed)) == chosen


@pytest.mark.parametrize(
    ("t", "epsilon"), [(1, 0.25), (2, 0.2), (3, 0.15), (4, 0.1), (5, 0.05), (6, 0.0), (7, 0.0), (8, 0.0)]
)
def test_epsilon_falls_by_steps_to_exactly_zero(t: int, epsilon: float) -> None:
    assert exploration_rate(t, 0.3, 0.05) == pytest.approx(epsilon, abs=1e-12)
    assert t < 6 or exploration_rate(t, 0.3, 0.05) == 0.0


def test_the_first_federated_update_is_round_one_of_the_schedule() -> None:
    # ε = 1 − 1·t is 1 before the first upload and 0 from the first federated update on.
    algorithm = FedFomo(num_downloads=1, epsilon=1.0, epsilon_decay=1.0)
    state = algorithm.aggregate(State.start(4), uploads_of(0, 1, 2, 3))
    assert state.round == 1
    state = algorithm.aggregate(
        state, {0: Upload(point(0), EvaluationWeights(ids(3), numbers(0.5), numbers(1.0)))} | uploads_of(1, 2, 3)
    )
    assert {tuple(sent_to(algorithm, state, 0, seed)) for seed in range(20)} == {(3,)}


@pytest.mark.parametrize(
    ("uniforms", "chosen"),
    [
        # With ε = 0.25: yes, no, yes, no. Random: 5. Best: 3. Random: 5 and 3 are taken, so 2. Best: 3 is taken, so 1.
        ([0.1, 0.9, 0.2, 0.7], [5, 3, 2, 1]),
        ([0.1, 0.2, 0.0], [5, 3, 2]),  # all explore: the random order
        ([0.9, 0.25, 0.3], [3, 1, 4]),  # none does: the ranking
        ([], []),
    ],
)
def test_each_slot_decides_for_itself_whether_to_explore(
    uniforms: list[float], chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    at_random = ids(5, 3, 2, 1, 4)
    monkeypatch.setattr(torch, "randperm", lambda _, generator: at_random - 1)  # places in 1, …, 5
    monkeypatch.setattr(torch, "rand", lambda _, generator, dtype: numbers(*uniforms))
    affinity = numbers(-9, 0.3, -0.2, 0.9, 0.1, -0.3)  # ranking: 3, 1, 4, 2, 5
    assert choose(affinity, [1, 2, 3, 4, 5], len(uniforms), 0.25, stream(0)) == chosen


def test_exploration_happens_about_as_often_as_epsilon_says() -> None:
    affinity = torch.arange(100, dtype=torch.float64)  # 99 is the best; a random pick finds it 1 time in 100
    picks = [choose(affinity, range(100), 1, 0.25, stream(seed))[0] for seed in range(400)]
    explored = sum(pick != 99 for pick in picks)
    assert 70 <= explored <= 130  # 99 expected, standard deviation 8.6


def test_ties_are_broken_at_random() -> None:
    affinity = torch.zeros(4, dtype=torch.float64)
    picks = [choose(affinity, [1, 2, 3], 1, 0.0, stream(seed))[0] for seed in range(60)]
    assert {pick: picks.count(pick) >= 10 for pick in picks} == {1: True, 2: True, 3: True}


def test_the_unknown_comes_before_the_harmful_and_after_the_helpful() -> None:
    affinity = numbers(1.0, -0.1, 0.0, 0.1)
    assert choose(affinity, [1, 2, 3], 3, 0.0, stream(0)) == [3, 2, 1]


def test_affinity_starts_as_identity_without_models() -> None:
    state = FedFomo().start_server(start_of(3, 0))
    assert torch.equal(state.affinity.dense(), torch.eye(3, dtype=torch.float64))
    assert dict(state.models) == {}
    assert [sent_to(FedFomo(), state, client) for client in range(3)] == [[], [], []]


def test_models_travel_with_their_ids() -> None:
    state = FedFomo().aggregate(State.start(3), uploads_of(0, 1, 2))
    download = FedFomo().configure_client(state, 1, stream(0))
    assert sorted(download.ids.tolist()) == [0, 2]
    assert [model.item() for model in download.models] == download.ids.tolist()


def test_only_the_last_rounds_uploads_are_sent_or_the_latest_of_everybody() -> None:
    algorithm = FedFomo()
    state = algorithm.aggregate(
        algorithm.aggregate(LATEST.start_server(start_of(5, 0)), uploads_of(1, 2)), uploads_of(3)
    )
    assert sent_to(algorithm, state, 0) == [3]
    assert sorted(sent_to(LATEST, state, 0)) == [1, 2, 3]  # and never 4, who never uploaded
    assert sent_to(algorithm, state, 3) == []


def test_a_new_upload_replaces_the_old_one() -> None:
    algorithm = LATEST
    state = algorithm.aggregate(algorithm.start_server(start_of(2, 0)), uploads_of(0, 1))
    state = algorithm.aggregate(state, {1: Upload(point(8), EvaluationWeights.none())})
    assert [model.item() for model in algorithm.configure_client(state, 0, stream(0)).models] == [8.0]


def test_a_round_without_uploads_counts_and_leaves_what_there_was_to_send() -> None:
    state = FedFomo().aggregate(FedFomo().aggregate(LATEST.start_server(start_of(2, 0)), uploads_of(0, 1)), {})
    assert state.round == 2
    assert sent_to(FedFomo(), state, 0) == sent_to(LATEST, state, 0) == [1]


def test_wanted_averages_come_with_the_models_and_are_no_part_of_the_count() -> None:
    algorithm = FedFomoAsCoded(num_downloads=1, norm="l2", affinity_update="raw", num_averages=1)
    state = algorithm.aggregate(algorithm.start_server(start_of(3, 0)), uploads_of(0, 1, 2))
    download = algorithm.configure_client(state, 0, stream(0))
    assert len(download.ids) == 1
    assert [average.item() for average in download.models[1:]] == [1.0, 1.0]  # of 0, 1, 2; and the mean of averages


def test_averages_are_candidates_without_a_place_in_the_affinity() -> None:
    memory = Memory(point(0), point(0), EvaluationWeights.none())
    download = Download(ids(1), (point(2), point(4)))
    # Target 4: losses 16, then 4 at 2 and 0 at 4: weights 12/2 = 6 and 16/4 = 4.
    raw = FedFomoAsCoded(norm="l2", affinity_update="raw").personalise(scalar_client(target=4.0), download, memory)
    assert raw.model.tolist() == pytest.approx([0.6 * 2 + 0.4 * 4])
    assert raw.memory.findings.ids.tolist() == [0, 1]
    assert raw.memory.findings.increments.tolist() == [0.0, 6.0]
    assert raw.memory.findings.shares.tolist() == pytest.approx([0.0, 0.6])
    assert raw.memory.findings.share_of_averages == pytest.approx(0.4)
    normalised = FedFomoAsCoded(norm="l2").personalise(scalar_client(target=4.0), download, memory)
    assert normalised.memory.findings.increments.tolist() == pytest.approx([0.0, 6 / 10])  # the sum counts averages


def test_whoever_moves_to_an_average_alone_says_so() -> None:
    client, memory = scalar_client(target=4.0), Memory(point(0), point(0), EvaluationWeights.none())
    # Losses 16 at 0, 36 at −2, 0 at 4: the average alone is better than the reference.
    for averages, share, moved_to in (((point(4),), 1.0, 4.0), ((point(-1),), 0.0, 0.0), ((), None, 0.0)):
        personal = FedFomoAsCoded(norm="l2").personalise(client, Download(ids(1), (point(-2), *averages)), memory)
        assert personal.model.tolist() == [moved_to]
        assert personal.memory.findings.shares.tolist() == [0.0, 0.0]
        assert personal.memory.findings.share_of_averages == share


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"num_downloads": 0}, "'num_downloads' .* must be at least 1, not 0"),
        ({"epsilon": 1.5}, "'epsilon' .* must be between 0 and 1, not 1.5"),
        ({"epsilon": -0.1}, "'epsilon' .* must be between 0 and 1"),
        ({"epsilon": float("nan")}, "'epsilon' .* must be a number"),
        ({"epsilon_decay": -0.1}, "'epsilon_decay' .* must be at least 0"),
        ({"num_averages": -1}, "'num_averages' .* must be at least 0"),
    ],
)
def test_impossible_options_are_refused_in_words(options: dict[str, float], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        FedFomoAsCoded(**options)  # type: ignore[arg-type]
