"""A pool of shared examples, worked by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.algorithms.fedavg_shared import (
    Download,
    FedAvgShared,
    Memory,
    Share,
    State,
    Upload,
    draw_share,
    own_and_pool,
)
from fedfomo.core.data import Examples
from fedfomo.core.rng import stream
from fedfomo.core.round import RoundResult, run_round
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import (
    InProcess,
    client_of,
    digest,
    federation_of,
    ids,
    point,
    points_problem,
    scalar_problem,
    start_of,
    targets,
)

EVERYTHING = FedAvgShared(fraction=1.0)


def share(*values: float) -> Share:
    examples = targets(*values)
    return Share(examples.inputs, examples.labels)


def test_a_share_is_a_rounded_fraction_of_different_examples() -> None:
    examples = targets(*range(60))
    drawn = draw_share(examples, 0.05, stream(0))
    assert len(set(drawn.labels.tolist())) == len(drawn.inputs) == 3
    assert [len(draw_share(targets(*range(n)), 0.05, stream(0)).labels) for n in (0, 9, 11, 100)] == [0, 0, 1, 5]


def test_the_pool_is_added_in_the_order_of_ids() -> None:
    assert own_and_pool(targets(1, 2), {5: share(6), 3: share(4, 5)}, 1).labels.tolist() == [1.0, 2.0, 4.0, 5.0, 6.0]


def test_shares_that_do_not_look_like_the_own_examples_are_left_out() -> None:
    wide = Share(torch.zeros(1, 7), torch.zeros(1))
    whole_numbers = Share(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
    assert own_and_pool(targets(1), {2: wide, 3: whole_numbers, 4: share(9)}, 1).labels.tolist() == [1.0, 9.0]


def test_shares_with_labels_that_the_network_lacks_are_left_out() -> None:
    def numbered(*labels: int) -> Examples:
        return Examples(torch.zeros(len(labels), 1), torch.tensor(labels))

    pool = {n: Share(numbered(label).inputs, numbered(label).labels) for n, label in ((1, 2), (2, 99), (3, -1))}
    assert own_and_pool(numbered(0), pool, num_outputs=3).labels.tolist() == [0, 2]


def test_a_share_larger_than_asked_for_is_refused() -> None:
    state = FedAvgShared(fraction=0.5).start_server(start_of(2, 0.0))
    for size, fits in ((3, True), (4, False)):
        upload = Upload(point(0), 4, Share(torch.zeros(size, 1), torch.zeros(size)), 0)
        fault = FedAvgShared(fraction=0.5).validate(state, upload)
        assert (fault is None) == fits


def test_a_whole_run_of_two_clients() -> None:
    # First everybody is alone: halfway to 8 and to −4, average 1. Then both train on {8, −4}: halfway to 2.
    result = simulate(scalar_problem([(8.0, 0.0), (-4.0, 0.0)]), EVERYTHING, SimulationConfig(rounds=2))
    assert {n: model.item() for n, model in result.models.items()} == {0: 1.5, 1: 1.5}
    assert result.after_training[0].loss == result.after_training[1].loss == 1.5**2


def test_uploads_count_own_examples_and_the_pool() -> None:
    client = client_of(scalar_problem([(8.0, 0.0)]), 0)
    memory = Memory({1: share(2, 2), 2: share(2)}, 3)
    upload = EVERYTHING.train(client, Download(point(0), {}, 3, False), memory).upload
    assert (upload.num_examples, upload.share, upload.num_received) == (4, None, 3)
    # Halfway to the mean of 8, 2, 2, 2.
    assert upload.model.item() == pytest.approx(1.75)


def rounds_of(lost: dict[int, list[int]], num_rounds: int) -> list[tuple[RoundResult[State], dict[int, Download]]]:
    """Run a federation of three in which some uploads of some rounds are lost."""
    problem = scalar_problem([(8.0, 0.0), (-4.0, 0.0), (2.0, 0.0)])
    exchange, federation = InProcess(problem, EVERYTHING), federation_of(problem, EVERYTHING)
    state = EVERYTHING.start_server(problem.start(num_rounds))
    played: list[tuple[RoundResult[State], dict[int, Download]]] = []
    for t in range(num_rounds):
        sent: dict[int, Download] = {}

        def carry(round: int, downloads: Any, sent: dict[int, Download] = sent) -> list[tuple[int, Upload]]:
            sent.update(downloads)
            return [(n, upload) for n, upload in exchange(round, downloads) if n not in lost.get(round, [])]

        outcome = run_round(federation, state, t, range(3), carry)
        state = outcome.state
        played.append((outcome, sent))
    return played


def test_each_share_goes_up_once_and_down_once_to_each_other_client() -> None:
    (first, sent_first), (second, sent_second), (third, sent_third) = rounds_of({}, 3)
    assert [u.share is not None for u in first.uploads.values()] == [True] * 3
    assert [u.share for u in (*second.uploads.values(), *third.uploads.values())] == [None] * 6
    assert [sorted(d.shares) for d in sent_first.values()] == [[], [], []]
    assert [sorted(d.shares) for d in sent_second.values()] == [[1, 2], [0, 2], [0, 1]]
    assert [sorted(d.shares) for d in sent_third.values()] == [[], [], []]


def test_bytes_of_shares_are_counted() -> None:
    # An example is two float32, input and label. Down, beside model (4), pool size (8) and request (1): two examples
    # to each of three clients in the second round. Up, beside model (4) and two numbers (16): one each in the first.
    first, second, third = (played.traffic for played, _ in rounds_of({}, 3))
    assert [t.bytes_down for t in (first, second, third)] == [3 * 13, 3 * (13 + 2 * 8), 3 * 13]
    assert [t.bytes_up for t in (first, second, third)] == [3 * (20 + 8), 3 * 20, 3 * 20]


def test_a_lost_share_is_asked_for_again_and_a_lost_answer_makes_the_server_send_again() -> None:
    played = rounds_of({0: [2], 1: [1]}, 4)
    wanted = [[n for n, d in sent.items() if d.wants_share] for _, sent in played]
    assert wanted == [[0, 1, 2], [2], [], []]
    received = [[sorted(d.shares) for d in sent.values()] for _, sent in played]
    assert received == [[[], [], []], [[1], [0], [0, 1]], [[2], [0, 2], []], [[], [], []]]


def test_without_a_share_it_is_fedavg() -> None:
    problem = points_problem()
    plain = simulate(problem, FedAvg(), SimulationConfig(rounds=3)).models
    assert digest(simulate(problem, FedAvgShared(fraction=0.0), SimulationConfig(rounds=3)).models) == digest(plain)


def test_a_round_without_uploads_keeps_model_and_pool() -> None:
    before = State(point(3), {1: share(5)}, ids(1), {1: 0})
    after = EVERYTHING.aggregate(before, {})
    assert (after.model.item(), [*after.pool], after.arrivals.tolist(), after.received) == (3.0, [1], [1], {1: 0})


def test_a_second_share_does_not_replace_the_first() -> None:
    before = State(point(3), {1: share(5)}, ids(1), {})
    after = EVERYTHING.aggregate(before, {1: Upload(point(3), 1, share(7), 0)})
    assert after.pool[1].labels.tolist() == [5.0]
    assert after.arrivals.tolist() == [1]


def test_inputs_without_their_labels_are_refused() -> None:
    state = EVERYTHING.start_server(points_problem().start(1))
    fine = Upload(point(3), 1, share(5), 0)
    assert EVERYTHING.validate(state, fine) is EVERYTHING.validate(state, replace(fine, share=None)) is None
    for inputs, labels in ((torch.zeros(2, 1), torch.zeros(3)), (torch.zeros(()), torch.zeros(()))):
        fault = EVERYTHING.validate(state, replace(fine, share=Share(inputs, labels)))
        assert fault == "'share' does not have one label for each input"


def test_a_fraction_above_one_is_refused() -> None:
    with pytest.raises(InputError, match=r"'fraction' .* must be between 0 and 1"):
        FedAvgShared(fraction=1.5)
