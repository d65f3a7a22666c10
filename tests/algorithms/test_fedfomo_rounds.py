"""Whole rounds of FedFomo, run by hand on models that are one number."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from fedfomo.algorithms.fedfomo import (
    Download,
    EvaluationWeights,
    FedFomo,
    FedFomoAsCoded,
    FedFomoKeepTraining,
    Memory,
    State,
    Upload,
)
from fedfomo.algorithms.fedfomo.averages import FedFomoAverages
from fedfomo.algorithms.fedfomo.state import validate_weights
from fedfomo.core.rng import stream
from fedfomo.core.round import run_round, sample_clients
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import (
    ROUNDS,
    InProcess,
    federation_of,
    ids,
    numbers,
    point,
    run_rounds,
    scalar_client,
    scalar_problem,
    start_of,
)

ALL_OF_THEM = FedFomo(num_downloads=10)


def test_a_round_without_uploads_leaves_the_models_of_the_last_for_everybody() -> None:
    algorithm = FedFomoAsCoded(norm="l2", affinity_update="raw", num_averages=1)
    models, start = {0: point(1), 2: point(3)}, algorithm.start_server(start_of(3, 0))
    state = replace(start, round=4, models=models, last_uploaders=ids(0, 2), averages=(point(2),))
    after = algorithm.aggregate(state, {})
    assert after.round == 5
    assert algorithm.available(after, 1, stream(0)).tolist() == [0, 2]
    assert after.averages == state.averages


def test_everybody_mixes_the_uploads_from_before_the_round() -> None:
    # Without training data clients make the federated update and no more.
    problem = scalar_problem([(None, 4.0), (None, 3.0), (None, 10.0)])
    exchange = InProcess(problem, ALL_OF_THEM)
    before, now = [point(0), point(8), point(20)], [point(2), point(6), point(16)]
    state = replace(State.start(3), round=1, models=dict(enumerate(now)), last_uploaders=ids(0, 1, 2))
    exchange.memories = {n: Memory(before[n], now[n], EvaluationWeights.none()) for n in range(3)}
    run_round(federation_of(problem, ALL_OF_THEM), state, 1, [0, 1, 2], exchange)
    # Client 0: losses 16 | 4, 4, 144; distances 2, 6, 16; weights 12/2, 12/6, −128/16.
    # Client 1: losses 25 | 1, 9, 169; distances 6, 2, 8; weights 24/6, 16/2, −144/8.
    # Client 2: losses 100 | 64, 16, 36; distances 18, 14, 4; weights 36/18, 84/14, 64/4.
    weights = {0: {0: 6, 1: 2, 2: -8}, 1: {0: 4, 1: 8, 2: -18}, 2: {0: 2, 1: 6, 2: 16}}
    for n, memory in exchange.memories.items():
        found = dict(zip(memory.findings.ids.tolist(), memory.findings.increments.tolist(), strict=True))
        assert found == pytest.approx(weights[n])
    mixtures = [(6 * 2 + 2 * 6) / 8, (4 * 2 + 8 * 6) / 12, (2 * 2 + 6 * 6 + 16 * 16) / 24]  # 3, 4⅔, 12⅓
    assert [exchange.personalised[n].item() for n in range(3)] == pytest.approx(mixtures)
    one_after_the_other = [3.0, 4.846153846153846, 12.097766749379653]  # had clients seen each other's new models
    assert abs(exchange.personalised[1].item() - one_after_the_other[1]) > 0.1


def test_a_round_adds_the_weights_to_the_affinity_and_stores_the_trained_models() -> None:
    # Training goes halfway from the mixture to the training target.
    problem = scalar_problem([(5.0, 4.0), (5.0, 3.0), (5.0, 10.0)])
    exchange = InProcess(problem, ALL_OF_THEM)
    before, now = [point(0), point(8), point(20)], [point(2), point(6), point(16)]
    state = replace(State.start(3), round=1, models=dict(enumerate(now)), last_uploaders=ids(0, 1, 2))
    exchange.memories = {n: Memory(before[n], now[n], EvaluationWeights.none()) for n in range(3)}
    after = run_round(federation_of(problem, ALL_OF_THEM), state, 1, [0, 1, 2], exchange).state
    assert after.affinity.dense().tolist() == [[7.0, 2.0, -8.0], [4.0, 9.0, -18.0], [2.0, 6.0, 17.0]]
    assert after.taken.dense()[0].tolist() == [0.75, 0.25, 0.0]
    mixtures = [3.0, 14 / 3, 37 / 3]
    assert [after.models[n].item() for n in range(3)] == pytest.approx([(m + 5) / 2 for m in mixtures])
    assert after.round == 2
    assert state.affinity.dense().tolist() == torch.eye(3).tolist()  # the state before is as it was


def test_the_reference_is_the_model_after_the_last_federated_update_even_after_an_absence() -> None:
    # Client 0 trains towards 8 and judges by 3.5. Client 1 trains towards 12 and judges by −1: whatever is
    # positive hurts it, so it stays at 0 and uploads 6 in every round.
    problem = scalar_problem([(8.0, 3.5), (12.0, -1.0)])
    algorithm = FedFomo()
    federation = federation_of(problem, algorithm)
    exchange = InProcess(problem, algorithm)

    def play_one(state: State, round: int, cohort: list[int]) -> State:
        return run_round(federation, state, round, cohort, exchange).state

    # Round 0: nobody has uploaded, so a0 = 0; training gives b0 = 4.
    state = play_one(algorithm.start_server(problem.start(ROUNDS)), 0, [0, 1])
    assert (exchange.memories[0].reference.item(), exchange.memories[0].own.item()) == (0.0, 4.0)
    assert (exchange.memories[1].reference.item(), exchange.memories[1].own.item()) == (0.0, 6.0)
    assert state.affinity.dense().tolist() == [[1.0, 0.0], [0.0, 1.0]]

    # Round 1: reference a0 = 0 (loss 12.25); own b0 = 4 (0.25), weight 12/4 = 3; other 6 (6.25), weight 6/6 = 1.
    state = play_one(state, 1, [0, 1])
    assert state.affinity.dense()[0].tolist() == [1 + 3.0, 1.0]
    a1 = 0.75 * 4 + 0.25 * 6  # 4.5
    b1 = (a1 + 8) / 2  # 6.25
    assert (exchange.memories[0].reference.item(), exchange.memories[0].own.item()) == (a1, b1)
    # Client 1: reference 0 (loss 1); own 6 (49), weight −48/6; other 4 (25), weight −24/4. It stays.
    assert state.affinity.dense()[1].tolist() == [-6.0, 1 - 8.0]
    assert exchange.personalised[1].item() == 0.0

    # Rounds 2 and 3: client 0 is absent, and nothing of its own changes.
    state = play_one(play_one(state, 2, [1]), 3, [1])
    assert (exchange.memories[0].reference.item(), exchange.memories[0].own.item()) == (a1, b1)
    assert state.affinity.dense()[0].tolist() == [4.0, 1.0]
    assert state.last_uploaders.tolist() == [1]

    # Round 4: reference a1 = 4.5 (loss 1); own b1 = 6.25 (7.5625), weight −6.5625/1.75; other 6 (6.25), −5.25/1.5.
    state = play_one(state, 4, [0, 1])
    assert state.affinity.dense()[0].tolist() == [4.0 - 3.75, 1.0 - 3.5]
    assert exchange.personalised[0].item() == a1  # back to the reference, not to b1
    assert exchange.memories[0].reference.item() == a1
    assert exchange.memories[0].own.item() == b1  # trained from the same place towards the same target


def test_a_client_that_took_part_for_the_first_time_late_starts_from_the_initial_model() -> None:
    problem = scalar_problem([(8.0, 6.0), (8.0, 6.0)])
    algorithm = FedFomo()
    exchange = InProcess(problem, algorithm)
    federation = federation_of(problem, algorithm)
    state = run_round(federation, algorithm.start_server(start_of(2, 0)), 0, [1], exchange).state
    run_round(federation, state, 1, [0], exchange)
    # Reference and own model are both 0 (loss 36): own weighs 0; the other, 4 (loss 4), weighs 32/4 and is taken.
    assert exchange.memories[0].findings.increments.tolist() == [0.0, 8.0]
    assert exchange.personalised[0].item() == 4.0


def test_one_more_federated_update_follows_the_last_round() -> None:
    # One round: both train from 0, to 4 and to −4. The last update judges these by targets 8 and −8.
    result = simulate(scalar_problem([(8.0, 8.0), (-8.0, -8.0)]), FedFomo(), SimulationConfig(rounds=1))
    # Client 0: reference 0 (64); own 4 (16), weight 48/4; other −4 (144), weight −80/4.
    assert {n: model.item() for n, model in result.models.items()} == {0: 4.0, 1: -4.0}
    assert result.after_update[0].loss == 16.0  # the test target is 0
    assert result.after_training[0].loss == 16.0
    assert result.affinity is not None
    assert result.affinity.dense().tolist() == [[1.0, 0.0], [0.0, 1.0]]  # what the last update found is not sent


def test_a_client_alone_keeps_its_training_only_as_long_as_it_helps() -> None:
    # Training goes 0 → 4 → 6 → 7 → …, validation wants 5: 4 helps (25 → 1), 6 does not (1 → 1), so it stops at 4.
    problem = scalar_problem([(8.0, 5.0)])
    for rounds in (1, 2, 3, 4):
        assert simulate(problem, FedFomo(), SimulationConfig(rounds=rounds)).models[0].item() == 4.0


def test_a_client_alone_that_keeps_its_training_is_local_training() -> None:
    problem = scalar_problem([(8.0, 5.0)])
    for rounds, model in ((1, 4.0), (2, 6.0), (3, 7.0)):
        assert simulate(problem, FedFomoKeepTraining(), SimulationConfig(rounds=rounds)).models[0].item() == model


def test_a_client_alone_that_never_overfits_is_local_training() -> None:
    problem = scalar_problem([(8.0, 8.0)])
    for rounds, model in ((1, 4.0), (2, 6.0), (3, 7.0)):
        assert simulate(problem, FedFomo(), SimulationConfig(rounds=rounds)).models[0].item() == model


def test_identical_candidates_keep_the_reference() -> None:
    memory = Memory(point(3), point(3), EvaluationWeights.none())
    personal = FedFomo().personalise(scalar_client(target=0.0), Download(ids(1, 2), (point(3), point(3))), memory)
    assert personal.model.tolist() == [3.0]
    assert personal.memory.findings.increments.tolist() == [0.0, 0.0, 0.0]


def test_training_starts_from_the_mixture_and_leaves_it_as_the_reference() -> None:
    client = scalar_client(target=0.0, train_target=8.0)
    memory = Memory(point(2), point(6), EvaluationWeights(ids(0, 1), numbers(0.5, -1.0), numbers(1, 0)))
    trained = FedFomo().train(client, Download(ids(), ()), memory)
    assert trained.model.item() == trained.upload.model.item() == trained.memory.own.item() == (2 + 8) / 2
    assert trained.memory.reference.item() == 2.0
    assert trained.upload.findings.ids.tolist() == [0, 1]
    assert trained.upload.findings.increments.tolist() == [0.5, -1.0]


def test_who_has_nothing_to_judge_by_takes_all_downloads_alike() -> None:
    memory = Memory(point(1), point(1), EvaluationWeights.none())
    download = Download(ids(1, 2), (point(2), point(6)))
    personal = FedFomo().personalise(scalar_client(target=None), download, memory)
    assert personal.model.tolist() == [4.0]
    assert personal.memory.findings.increments.tolist() == [0.0, 0.0, 0.0]
    broken = Download(ids(1, 2), (point(2), point(float("nan"))))
    assert FedFomo().personalise(scalar_client(target=None), broken, memory).model.tolist() == [2.0]
    alone = Download(ids(), ())
    assert FedFomo().personalise(scalar_client(target=None), alone, memory).model.tolist() == [1.0]


def test_a_client_whose_training_diverges_harms_nobody_and_goes_on_receiving() -> None:
    # Client 0 trains towards NaN: its uploads are refused. Client 1 is as good as alone: 0 → 4 → 6.
    problem = scalar_problem([(float("nan"), 8.0), (8.0, 8.0)])
    algorithm = FedFomo()
    exchange = InProcess(problem, algorithm)
    federation = federation_of(problem, algorithm)
    first = run_round(federation, algorithm.start_server(start_of(2, 0)), 0, [0, 1], exchange)
    second = run_round(federation, first.state, 1, [0, 1], exchange)
    assert first.refused == second.refused == {0: "'model' is not finite"}
    assert sorted(second.state.models) == [1]
    assert second.state.models[1].item() == 6.0
    assert exchange.personalised[0].item() == 4.0  # its own NaN weighs nothing, client 1's model 48/4
    assert second.state.affinity.dense().tolist() == [[1.0, 0.0], [0.0, 1 + 12.0]]


@pytest.mark.parametrize("num_clients", [1, 2])
@pytest.mark.parametrize("averages", [0, 2])
def test_very_small_federations_run(num_clients: int, averages: int) -> None:
    problem = scalar_problem([(8.0, 8.0)] * num_clients)
    algorithm = FedFomoAsCoded(norm="l2", affinity_update="raw", num_averages=averages)
    _, models = run_rounds(problem, algorithm, InProcess(problem, algorithm), [range(num_clients)] * 3)
    assert [models[n].item() for n in range(num_clients)] == [7.0] * num_clients  # 0 → 4 → 6 → 7


def test_cohorts_differ_between_rounds_and_never_repeat_a_client() -> None:
    cohorts = [sample_clients(100, 0.1, seed=0, round=t) for t in range(10)]
    assert len({tuple(cohort) for cohort in cohorts}) == 10
    for cohort in cohorts:
        assert len(set(cohort)) == len(cohort) == 10
        assert cohort == sorted(cohort)
    assert cohorts[0] == sample_clients(100, 0.1, seed=0, round=0)
    assert cohorts[0] != sample_clients(100, 0.1, seed=1, round=0)


@pytest.mark.parametrize(
    ("num_clients", "participation", "size"),
    [(100, 0.1, 10), (15, 0.1, 1), (3, 0.1, 1), (10, 0.3, 3), (7, 1.0, 7), (10, 0.29, 2), (1, 1.0, 1)],
)
def test_a_cohort_is_the_share_rounded_down_and_never_empty(num_clients: int, participation: float, size: int) -> None:
    assert len(sample_clients(num_clients, participation, 0, 0)) == size


def test_a_cohort_that_has_to_be_larger_keeps_whoever_was_drawn() -> None:
    cohorts = [sample_clients(10, 0.2, seed=0, round=0, least=least) for least in range(1, 13)]
    assert [len(cohort) for cohort in cohorts] == [2, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10]
    assert all(set(smaller) <= set(larger) for smaller, larger in pairwise(cohorts))


@pytest.mark.parametrize(
    ("findings", "fault"),
    [
        (EvaluationWeights(ids(0, 2), numbers(3e50, -3e50), numbers(0, 1)), None),
        (EvaluationWeights(ids(2, 2), numbers(1, 1), numbers(0, 1)), "'findings.ids' names a client twice"),
        (
            EvaluationWeights(ids(0, 2), numbers(1, 1e308), numbers(0, 1)),
            "'findings.increments' has a weight beyond 1e+100",
        ),
        (
            EvaluationWeights(ids(0, 2), numbers(1, -1e308), numbers(0, 1)),
            "'findings.increments' has a weight beyond 1e+100",
        ),
        (
            EvaluationWeights(ids(0, 2), numbers(1, 1), numbers(0, 1.5)),
            "'findings.shares' has a share that is not from 0 to 1",
        ),
        (
            EvaluationWeights(ids(0, 2), numbers(1, 1), numbers(-0.5, 1)),
            "'findings.shares' has a share that is not from 0 to 1",
        ),
        (EvaluationWeights(ids(0, 2), numbers(1, 1), numbers(0, 0), 1.0), None),
        (
            EvaluationWeights(ids(0, 2), numbers(1, 1), numbers(0, 0), 1.5),
            "'findings.share_of_averages' is not from 0 to 1",
        ),
        (
            EvaluationWeights(ids(0, 2), numbers(1, 1), numbers(0, 0), -0.5),
            "'findings.share_of_averages' is not from 0 to 1",
        ),
    ],
)
def test_findings_that_nobody_can_have_are_refused(findings: EvaluationWeights, fault: str | None) -> None:
    assert validate_weights(findings) == fault
    problem = scalar_problem([(1.0, 1.0)] * 3)
    for algorithm in (FedFomo(), FedFomoAverages()):
        upload = Upload(point(1), findings)
        state = State.start(3)
        for t in range(3):
            federation = federation_of(problem, algorithm)
            played = run_round(federation, state, t, [0, 1, 2], lambda _, downloads, sent=upload: [(1, sent)])
            state = played.state
            assert played.refused == ({} if fault is None else {1: fault})
            assert bool(torch.isfinite(state.affinity.values).all())
