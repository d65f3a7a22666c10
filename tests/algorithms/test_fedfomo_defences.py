"""What FedFomo can do about clients that mean no good, piece by piece and worked by hand."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedfomo.algorithms.fedfomo import Download, EvaluationWeights, FedFomo, Memory, RobustFedFomo, State, Upload
from fedfomo.algorithms.fedfomo.robust import (
    SKETCHED,
    clipped,
    deduplicate,
    find_free_riders,
    near_copies,
    reject_worse_mixture,
    sketch,
)
from fedfomo.core.rng import stream
from fedfomo.core.round import run_round
from fedfomo.errors import InputError
from fedfomo.simulation.simulate import SimulationConfig, simulate
from toy_problems import (
    InProcess,
    KeepLines,
    client_of,
    federation_of,
    ids,
    numbers,
    point,
    points_problem,
    scalar_client,
    scalar_problem,
    start_of,
)


@pytest.mark.parametrize(
    ("mixture", "reference", "own", "kept"),
    [
        (0.4, 1.0, 0.5, [0.3, 0.7]),  # better than both
        (0.5, 1.0, 0.5, [0.3, 0.7]),  # no worse than the better one
        (0.6, 1.0, 0.5, [1.0, 0.0]),  # worse: own
        (0.6, 0.5, 1.0, [0.0, 0.0]),  # worse: reference
        (0.6, 0.5, 0.5, [0.0, 0.0]),  # a tie goes to where the paper stays
        (math.nan, math.nan, math.nan, [0.3, 0.7]),  # nothing to judge by
    ],
)
def test_a_mixture_is_kept_unless_it_is_worse_than_what_the_client_had(
    mixture: float, reference: float, own: float, kept: list[float]
) -> None:
    assert reject_worse_mixture(numbers(0.3, 0.7), mixture, reference, own).tolist() == kept


def test_between_two_good_models_may_lie_a_bad_one_and_it_is_not_taken() -> None:
    # A loss with two valleys, |x² − 4|: of −2 and 2 each is perfect, their mean is the worst place between.
    class Valleys:
        def losses(self, model: object, thetas: list[torch.Tensor], examples: object) -> torch.Tensor:
            return torch.tensor([abs(theta.item() ** 2 - 4) for theta in thetas], dtype=torch.float64)

    client = replace(scalar_client(target=0.0, id=1), evaluator=Valleys())
    memory = Memory(point(0), point(2), EvaluationWeights.none())
    download = Download(ids(2), (point(-2),))
    plain = FedFomo().personalise(client, download, memory)
    assert plain.model.item() == 0.0  # weights (4 − 0)/2 each
    checked = RobustFedFomo(check_mixture=True).personalise(client, download, memory)
    assert checked.model.item() == 2.0
    assert checked.memory.findings.shares.tolist() == [1.0, 0.0]
    assert checked.memory.findings.increments.tolist() == plain.memory.findings.increments.tolist() == [2.0, 2.0]


def test_a_mixture_that_helps_is_the_same_checked_or_not() -> None:
    memory = Memory(point(0), point(2), EvaluationWeights.none())
    download = Download(ids(1), (point(6),))
    client = scalar_client(target=4.0)  # losses 16 | 4, 4: weights 6 and 2, mixture 3
    for algorithm in (FedFomo(), RobustFedFomo(check_mixture=True)):
        assert algorithm.personalise(client, download, memory).model.item() == 3.0


def test_after_the_last_round_the_head_is_trained_anew_and_nothing_else_changes() -> None:
    problem = points_problem(sizes={0: (0, 4)})
    layout = problem.model.layout
    is_head = layout.mask(layout.layers()[-1:])
    algorithm = RobustFedFomo(new_head_epochs=3)
    plain, renewed = (simulate(problem, a, SimulationConfig(rounds=2)) for a in (FedFomo(), algorithm))
    for n, model in plain.models.items():
        assert torch.equal(renewed.models[n][~is_head], model[~is_head])
        assert torch.equal(renewed.models[n][is_head], model[is_head]) == (n == 0)  # who cannot train keeps it
    start = torch.where(is_head, problem.initial, plain.models[1])
    client = replace(client_of(problem, 1, round=2), start=problem.start(2))
    expected = client.train(start, trainable_mask=is_head[: layout.num_trainable], epochs=3, purpose="new head")
    assert torch.equal(renewed.models[1], expected)
    assert renewed.after_training == plain.after_training


def test_the_head_is_trained_anew_however_early_a_run_ends() -> None:
    # Four validation examples are soon all right: of 30 planned rounds there are a few, and the models are of the best.
    problem, lines = points_problem(), list[dict[str, Any]]()
    layout = problem.model.layout
    is_head = layout.mask(layout.layers()[-1:])
    plan = SimulationConfig(rounds=30, stop_after=1)
    plain = simulate(problem, RobustFedFomo(), plan, callback=KeepLines(lines))
    renewed = simulate(problem, RobustFedFomo(new_head_epochs=3), plan)
    assert len(lines) < 30
    for n, model in plain.models.items():
        assert not torch.equal(renewed.models[n][is_head], model[is_head])


def test_in_any_round_but_the_last_update_the_head_stays() -> None:
    client, algorithm = client_of(points_problem(), 0), RobustFedFomo(new_head_epochs=3)
    memory, nobody = algorithm.start_client(client.start), Download(ids(), ())
    for is_final in (False, True):
        model = algorithm.personalise(replace(client, is_final=is_final), nobody, memory).model
        assert torch.equal(model, client.start.initial) != is_final


def test_reports_are_clipped_at_a_multiple_of_what_is_usual() -> None:
    # Medians of |w| > 0: 0.2, 0.3 and 1e9; what is usual is 0.3.
    reports = {0: numbers(0.1, -0.2, 4.0), 1: numbers(0.3, -5.0, 0.0, 0.1), 2: numbers(1e9, 1e9)}
    found = clipped(reports, 10.0)
    assert found[0].tolist() == [0.1, -0.2, 3.0]
    assert found[1].tolist() == [0.3, -3.0, 0.0, 0.1]
    assert found[2].tolist() == [3.0, 3.0]


def test_where_most_have_nothing_to_report_nobody_has() -> None:
    found = clipped({0: numbers(), 1: numbers(0.0), 2: numbers(1e9)}, 10.0)
    assert [weights.tolist() for weights in found.values()] == [[], [0.0], [0.0]]
    assert clipped({}, 10.0) == {}


def test_a_report_reaches_the_row_of_its_sender_alone() -> None:
    liar = Upload(point(0), EvaluationWeights(ids(1, 2), numbers(1e9, -1e9), numbers(0, 0)))
    affinity = FedFomo().aggregate(State.start(3), {0: liar}).affinity.dense()
    assert affinity[0].tolist() == [1.0, 1e9, -1e9]
    assert torch.equal(affinity[1:], torch.eye(3, dtype=torch.float64)[1:])


def test_the_server_clips_if_it_is_told_to() -> None:
    uploads = {
        n: Upload(point(n), EvaluationWeights(ids(2), numbers(w), numbers(0)))
        for n, w in ((0, 0.5), (1, -0.5), (3, 1e9))
    }
    rows = RobustFedFomo(weight_limit=4.0).aggregate(State.start(4), uploads).affinity.dense()
    assert rows[:, 2].tolist() == [0.5, -0.5, 1.0, 2.0]
    assert FedFomo().aggregate(State.start(4), uploads).affinity.dense()[3, 2] == 1e9
    with pytest.raises(InputError, match=r"'weight_limit' .* must be at least 0"):
        RobustFedFomo(weight_limit=-1.0)


def test_a_sketch_keeps_distances() -> None:
    rng = stream(0)
    models = [scale * torch.randn(20_000, generator=rng) for scale in (1.0, 1.0, 0.01, 0.0)]
    sketches = sketch(models)
    assert sketches.shape == (4, SKETCHED)
    for one in range(4):
        for other in range(one):
            distance = float((models[one].double() - models[other]).norm())
            assert float((sketches[one] - sketches[other]).norm()) == pytest.approx(distance, rel=0.2)
    few = [point(1, 2, 3), point(4, 5, 6)]
    assert sketch(few).tolist() == [[1, 2, 3], [4, 5, 6]]


def test_copies_are_found_by_the_distance_that_is_usual() -> None:
    # Median distances from all are 19 or more, 0.19 is near: that is true of those around 20.
    places = torch.tensor([[0.0], [1.0], [2.0], [20.0], [20.02], [20.06], [100.0]], dtype=torch.float64)
    assert near_copies(places).tolist() == [0, 1, 2, 3, 3, 3, 6]
    assert near_copies(places * 1e30).tolist() == [0, 1, 2, 3, 3, 3, 6]  # whatever the scale


def test_a_copy_of_a_copy_is_a_copy() -> None:
    chain = torch.tensor([[0.12], [0.0], [0.04], [0.08], [5.0], [6.0], [7.0], [8.0], [9.0]], dtype=torch.float64)
    assert near_copies(chain).tolist() == [0, 0, 0, 0, 4, 5, 6, 7, 8]


def test_models_far_away_do_not_bring_others_together() -> None:
    honest, far = [0.0, 1.0, 2.0, 3.0, 4.0], [1e30, 2e30, 3e30, -1e30]
    places = torch.tensor([[x] for x in (*honest, *far)], dtype=torch.float64)
    assert near_copies(places).tolist() == list(range(9))


def test_of_two_models_nothing_is_usual_and_only_the_very_same_are_copies() -> None:
    assert near_copies(torch.tensor([[0.0], [1e-9]], dtype=torch.float64)).tolist() == [0, 1]
    assert near_copies(torch.zeros(2, 1, dtype=torch.float64)).tolist() == [0, 0]
    assert near_copies(torch.zeros(1, 1, dtype=torch.float64)).tolist() == [0]


def test_of_copies_the_one_that_is_valued_most_is_left() -> None:
    copies = torch.tensor([0, 1, 1, 3, 1, 5])
    affinity = ids(2, 3, 4), numbers(0.5, 9.0, -0.5)
    assert deduplicate(copies, affinity, ids(0, 1, 2, 3, 4, 5), stream(0)).tolist() == [0, 2, 3, 5]
    assert deduplicate(copies, affinity, ids(0, 1, 3, 4), stream(0)).tolist() == [0, 1, 3]
    assert deduplicate(copies, affinity, ids(0, 4, 5), stream(0)).tolist() == [0, 4, 5]


def test_of_copies_that_are_valued_alike_any_may_be_left() -> None:
    nothing = ids(), numbers()
    left = {
        tuple(deduplicate(torch.tensor([0, 0, 0, 3]), nothing, ids(0, 1, 2, 3), stream(s)).tolist()) for s in range(30)
    }
    assert left == {(0, 3), (1, 3), (2, 3)}


def test_copies_take_one_slot_of_a_download() -> None:
    models = {0: 0.0, 1: 3.0, 2: 5.0, 3: 9.0, 4: 9.001, 5: 9.002, 6: 14.0}
    uploads = {n: Upload(point(x), EvaluationWeights.none()) for n, x in models.items()}
    for algorithm, most in (
        (FedFomo(num_downloads=6), 3),
        (RobustFedFomo(num_downloads=6, one_slot_for_copies=True), 1),
    ):
        state = algorithm.aggregate(algorithm.start_server(start_of(7, 0)), uploads)
        sent = algorithm.configure_client(state, 0, stream(0)).ids.tolist()
        assert len({3, 4, 5} & set(sent)) == most
        assert {1, 2, 6} <= set(sent)


def test_an_upload_that_came_nearly_all_the_way_to_what_was_sent_is_named() -> None:
    known = {0: point(0), 1: point(10), 2: point(20), 3: point(30)}
    sent = {0: [1, 2], 1: [0, 2], 2: [3, 0], 3: [1], 4: [0]}
    # From 0 to 10: nine tenths of the way or more are too much, and so are as many of those from 20 to 0.
    for x, named in ((5.0, {}), (8.9, {}), (9.1, {0: 1}), (10.5, {0: 1}), (19.0, {0: 2})):
        assert find_free_riders({0: point(x)}, known, sent) == named
    everybody = {0: point(1), 1: point(12), 2: point(1.5), 3: point(30), 4: point(0)}
    # Client 3 has not moved at all; client 4 has uploaded nothing before.
    assert find_free_riders(everybody, known, sent) == {2: 0, 3: 3}
    assert find_free_riders(everybody, {}, sent) == {}


def test_who_sends_on_what_it_was_sent_is_named_in_the_round() -> None:
    # Training goes halfway to targets 8, 12, 16; client 3 sends on what client 1 uploaded.
    problem = scalar_problem([(8.0, 8.0), (12.0, 12.0), (16.0, 16.0), (20.0, 20.0)])
    for flag, named in ((True, {3: "nearly the model of client 1"}), (False, {})):
        algorithm = RobustFedFomo(flag_free_riders=flag)
        federation, exchange = federation_of(problem, algorithm), InProcess(problem, algorithm)
        state = run_round(federation, algorithm.start_server(problem.start(4)), 0, range(4), exchange).state

        def lazy(round: int, downloads: object, exchange: InProcess = exchange, state: State = state) -> object:
            uploads = dict(exchange(round, downloads))
            return {**uploads, 3: replace(uploads[3], model=state.models[1])}.items()

        played = run_round(federation, state, 1, range(4), lazy)
        assert played.suspected == named
        assert sorted(played.uploads) == [0, 1, 2, 3]  # it is named, no more
