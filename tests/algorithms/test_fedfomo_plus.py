"""FedFomo+, worked by hand on models that are one number."""

import math
from dataclasses import replace

import pytest
import torch

from fedfomo.algorithms.fedfomo import EvaluationWeights, FedFomoPlus
from fedfomo.algorithms.fedfomo.plus import (
    Download,
    Memory,
    State,
    Upload,
    agreement,
    choose_peers,
    counted,
    own_agreement,
    shortened,
    shortening,
    softmax_shares,
)
from fedfomo.core.messages import pack, unpack
from fedfomo.core.rng import stream
from fedfomo.core.round import run_round
from fedfomo.core.sparse import SparseMatrix
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import (
    InProcess,
    federation_of,
    ids,
    numbers,
    point,
    points_problem,
    scalar_client,
    scalar_problem,
    start_of,
)


def upload(value: float, num_examples: int = 1, findings: EvaluationWeights | None = None) -> Upload:
    return Upload(point(value), num_examples, findings or EvaluationWeights.none())


def test_shares_fall_with_the_exponential_of_the_loss() -> None:
    # exp(−2 · ½) = e⁻¹ and exp(−2 · 1) = e⁻²: shares are as e² : e : 1 for losses 0, ½, 1.
    total = math.e**2 + math.e + 1
    shares = softmax_shares(numbers(0.0, 0.5, 1.0), beta=2.0).tolist()
    assert shares == pytest.approx([math.e**2 / total, math.e / total, 1 / total])


def test_beta_0_weighs_all_alike_and_a_large_one_takes_the_best() -> None:
    assert softmax_shares(numbers(0.0, 9.0), beta=0.0).tolist() == [0.5, 0.5]
    assert softmax_shares(numbers(0.4, 0.2, 0.3), beta=1e6).tolist() == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_has_no_share(loss: float) -> None:
    assert softmax_shares(numbers(1.0, loss, 1.0), beta=8.0).tolist() == [0.5, 0.0, 0.5]


def test_without_a_finite_loss_the_average_is_used_which_is_the_first_candidate() -> None:
    assert softmax_shares(numbers(math.nan, math.inf), beta=8.0).tolist() == [1.0, 0.0]


def test_updates_of_more_than_two_medians_count_and_reach_less() -> None:
    # The median of 1, 2, 2, 16 is 2. With b = 2 nobody may be longer than 4.
    assert shortening(numbers(1.0, 2.0, 2.0, 16.0), bound=2.0).tolist() == [1.0, 1.0, 1.0, 0.25]
    assert shortening(numbers(1.0, 19.0), bound=1.0).tolist() == [1.0, 10 / 19]  # the mean of two is their median
    assert shortened(point(10.0), point(26.0), 0.25, 1.0, num_trainable=1).tolist() == [14.0]
    assert shortening(numbers(0.0, 0.0), bound=2.0).tolist() == [1.0, 1.0]  # nobody has moved
    # Clients that have not moved do not lower the median, or many of them would undo everybody's round.
    assert shortening(numbers(0.0, 0.0, 7.0), bound=2.0).tolist() == [1.0, 1.0, 1.0]
    assert shortening(numbers(0.0, 0.0, 1.0, 1.0, 8.0), bound=2.0).tolist() == [1.0, 1.0, 1.0, 1.0, 0.25]


def test_buffers_are_shortened_by_their_own_median() -> None:
    # One trainable coordinate and one running statistic, from 0. The statistics 1, 1, 100 have the median 1.
    algorithm, both = FedFomoPlus(), [torch.tensor(pair) for pair in ((1.0, 1.0), (1.0, -1.0), (1.0, 100.0))]
    state = replace(algorithm.start_server(start_of(3, 0.0)), average=torch.zeros(2), num_trainable=1)
    uploads = {n: Upload(model, 1, EvaluationWeights.none()) for n, model in enumerate(both)}
    after = algorithm.aggregate(state, uploads)
    assert [after.models[n].tolist() for n in range(3)] == [[1.0, 1.0], [1.0, -1.0], [1.0, 2.0]]
    assert after.directions[2].tolist() == [1.0]  # a direction has no buffers


def test_a_number_of_examples_counts_up_to_ten_medians() -> None:
    assert counted(numbers(1.0, 2.0, 3.0, 20.0, 1e9)).tolist() == [1.0, 2.0, 3.0, 20.0, 30.0]
    # Client 3's update agrees by a tenth with client 0's, and its word of 10⁹ examples alone would move client 0.
    algorithm = FedFomoPlus()
    state = replace(algorithm.start_server(start_of(4, 0.0)), average=torch.zeros(2), num_trainable=2)
    angle = math.acos(0.1)
    models = [(1.0, 0.0), (1.0, 0.0), (1.0, 0.0), (math.cos(angle), math.sin(angle))]
    examples = (100, 100, 100, 10**9)
    uploads = {n: Upload(torch.tensor(model), examples[n], EvaluationWeights.none()) for n, model in enumerate(models)}
    start = algorithm.start_for(algorithm.aggregate(state, uploads), 0)
    liar = 10 * 0.1**3  # of the weight of one of the three
    assert start.tolist() == pytest.approx([(3 + liar * 0.1) / (3 + liar), liar * math.sin(angle) / (3 + liar)])


def test_agreement_is_the_cosine_of_directions() -> None:
    # (1, 0) against (1, 0), (0.6, 0.8), (0, 1), (−1, 0): cosines 1, 0.6, 0, −1.
    others = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
    ones, own = torch.ones(4, dtype=torch.float64), others[0]
    assert agreement(own, others, ones).tolist() == pytest.approx([1.0, 0.6, 0.0, 0.0])
    halves = torch.tensor([1.0, 0.5, 1.0, 1.0], dtype=torch.float64)  # the second update was twice too long
    assert agreement(own, others, halves).tolist() == pytest.approx([1.0, 0.3, 0.0, 0.0])


def test_a_client_agrees_with_itself_as_its_nearest_does_and_at_least_as_is_usual_where_that_is_clear() -> None:
    # The upper quartile of five is the fourth: 0.8. Twice that is above 1, so nobody counts itself for less.
    assert own_agreement(numbers(0.1, 0.5, 0.7, 0.8, 0.9)).tolist() == pytest.approx([0.8, 0.8, 0.8, 0.8, 0.9])
    # Here it is 0.2, and the least 0.2 · 0.4 = 0.08.
    assert own_agreement(numbers(0.01, 0.1, 0.1, 0.2, 0.3)).tolist() == pytest.approx([0.08, 0.1, 0.1, 0.2, 0.3])
    assert own_agreement(numbers(0.0, 0.0, 0.6)).tolist() == pytest.approx([1.0, 1.0, 0.6])  # none agrees: alone
    assert own_agreement(numbers(0.0)).tolist() == [1.0]


def test_clients_that_go_one_way_share_a_start_by_their_examples_and_those_that_do_not_go_on_apart() -> None:
    # From 0, clients 0, 1, 2 train to 4, 8 and −2. Cosines: 1 between 0 and 1, −1 to client 2.
    algorithm = FedFomoPlus()
    state = algorithm.start_server(start_of(4, 0.0))
    assert algorithm.start_for(state, 0).tolist() == [0.0]
    after = algorithm.aggregate(state, {2: upload(-2.0, 5), 0: upload(4.0, 1), 1: upload(8.0, 3)})
    assert [algorithm.start_for(after, n).tolist() for n in range(4)] == [
        [(1 * 4 + 3 * 8) / 4],
        [(1 * 4 + 3 * 8) / 4],
        [-2.0],  # nobody agrees with it
        [pytest.approx((1 * 4 + 3 * 8 - 5 * 2) / 9)],  # nothing is known of it: the average
    ]
    assert after.last_uploaders.tolist() == [0, 1, 2]
    assert (after.round, state.round) == (1, 0)
    assert [after.directions[n].tolist() for n in range(3)] == [[1.0], [1.0], [-1.0]]


def test_directions_add_up_over_rounds_and_absent_clients_keep_theirs() -> None:
    algorithm = FedFomoPlus()
    state = algorithm.aggregate(algorithm.start_server(start_of(2, 0.0)), {0: upload(3.0), 1: upload(1.0)})
    # Both start from 2: client 0 goes back to 1.
    state = algorithm.aggregate(state, {0: upload(1.0)})
    assert [state.directions[n].tolist() for n in range(2)] == [[0.0], [1.0]]
    assert algorithm.start_for(state, 0).tolist() == [1.0]  # its own alone: its direction is 0, so none agrees
    assert algorithm.start_for(state, 1).tolist() == [1.0]  # likewise: the average of those who uploaded
    state = algorithm.aggregate(state, {0: upload(5.0)})
    assert algorithm.start_for(state, 1).tolist() == [5.0]


def test_agreement_is_raised_to_gamma() -> None:
    # Client 0 has direction (1, 0), client 1 (0.6, 0.8). Its own model counts 0.6² as well, client 2's, at (0.8, −0.6),
    # 0.8²; client 0's nearest is client 2, so weights are 0.64, 0.36, 0.64.
    algorithm, directions = FedFomoPlus(gamma=2.0), {0: (1.0, 0.0), 1: (0.6, 0.8), 2: (0.8, -0.6)}
    ones = torch.ones(3, dtype=torch.float64)
    pull = algorithm.pull({n: torch.tensor(d) for n, d in directions.items()}, [0, 1, 2], ones, ones, 3)
    assert pull.dense_row(0).tolist() == pytest.approx([0.64, 0.36, 0.64])
    assert pull.row(1)[0].tolist() == [0, 1]  # clients 1 and 2 are at right angles


def test_shared_by_all_the_start_is_the_average() -> None:
    algorithm = FedFomoPlus(sharing="all")
    state = algorithm.aggregate(algorithm.start_server(start_of(3, 0.0)), {0: upload(4.0), 1: upload(-2.0, 3)})
    assert [algorithm.start_for(state, n).tolist() for n in range(3)] == [[-0.5]] * 3


def test_a_model_far_beyond_the_others_moves_nobody_far() -> None:
    algorithm = FedFomoPlus()
    uploads = {0: upload(1.0), 1: upload(1.0), 2: upload(1.0), 3: upload(1e30)}
    state = algorithm.aggregate(algorithm.start_server(start_of(4, 0.0)), uploads)
    assert state.models[3].tolist() == [2.0]  # two medians
    assert [algorithm.start_for(state, n).item() for n in range(3)] == [1.0] * 3
    assert state.average.item() == pytest.approx(5 / 4)


def test_only_models_of_the_last_round_are_sent_since_older_ones_had_another_start() -> None:
    algorithm = FedFomoPlus()
    state = algorithm.aggregate(algorithm.start_server(start_of(3, 0.0)), {0: upload(1.0), 1: upload(2.0)})
    state = algorithm.aggregate(state, {2: upload(5.0)})
    download = algorithm.configure_client(state, 0, stream(0))
    assert download.ids.tolist() == [2]
    assert download.models[0].tolist() == [5.0]
    assert download.start.tolist() == [5.0]
    assert algorithm.configure_client(state, 2, stream(0)).ids.tolist() == []  # nobody is sent its own


def test_one_who_was_never_evaluated_is_sent_while_there_is_one_and_the_best_beside() -> None:
    others = ids(1, 2, 3, 4, 5)
    p = SparseMatrix.zeros(6).add_rows({0: (ids(0, 2, 3, 4), numbers(1.0, -1.0, 4.0, 2.0))})
    assert {tuple(choose_peers(others, p, 0, 3, stream(seed))) for seed in range(20)} == {(1, 3, 4), (5, 3, 4)}
    assert choose_peers(others, p, 0, 1, stream(0)) in ([1], [5])
    # Once all are known, those of highest affinity alone.
    assert choose_peers(ids(2, 3, 4), p, 0, 2, stream(0)) == [3, 4]
    assert sorted(choose_peers(ids(2, 3), p, 0, 9, stream(0))) == [2, 3]
    assert choose_peers(ids(), p, 0, 2, stream(0)) == []


def test_a_round_without_uploads_keeps_the_start_and_the_models() -> None:
    algorithm = FedFomoPlus()
    state = algorithm.aggregate(algorithm.start_server(start_of(2, 0.0)), {0: upload(1.0)})
    after = algorithm.aggregate(state, {})
    assert (after.round, after.average.tolist(), after.last_uploaders.tolist()) == (2, [1.0], [0])


def test_the_models_of_highest_affinity_are_sent() -> None:
    algorithm = FedFomoPlus(num_downloads=1)
    found = EvaluationWeights(ids(0, 1, 2), numbers(9.0, -1.0, 2.0), numbers(0.0, 0.0, 0.0))
    uploads = {0: upload(1.0, findings=found), 1: upload(2.0), 2: upload(3.0)}
    state = algorithm.aggregate(algorithm.start_server(start_of(3, 0.0)), uploads)
    assert algorithm.configure_client(state, 0, stream(0)).ids.tolist() == [2]


def test_a_client_mixes_the_average_its_training_those_sent_and_its_own_of_before() -> None:
    # g = 2 and the training target 6: θ⁺ = 4, half of the way. Judged by (x − 3)²: g 1, θ⁺ 1, peer 5 has 4,
    # the last training 3 has 0, the last mixture 1 has 4. With β = ln 2, shares are as 2^−loss: ½, ½, 1/16, 1, 1/16.
    client = scalar_client(3.0, 6.0, id=7)
    memory = Memory(point(3.0), point(1.0), EvaluationWeights.none())
    personal = FedFomoPlus(beta=math.log(2)).personalise(client, Download(point(2.0), ids(4), (point(5.0),)), memory)
    weights = [1 / 2, 1 / 2, 1 / 16, 1, 1 / 16]
    total = sum(weights)
    expected = sum(w * x for w, x in zip(weights, [2, 4, 5, 3, 1], strict=True)) / total
    assert personal.model.item() == pytest.approx(expected)
    assert personal.memory.mixture is not None
    assert personal.memory.mixture.item() == pytest.approx(expected)
    assert personal.memory.own is not None
    assert personal.memory.own.item() == 4.0
    found = personal.memory.findings
    assert found.ids.tolist() == [7, 4]
    # Eq. 3 with reference g: (1 − 1)/|4 − 2| = 0 for the own training, (1 − 4)/|5 − 2| = −1 for the peer.
    assert found.increments.tolist() == pytest.approx([0.0, -1.0])
    assert found.shares.tolist() == pytest.approx([0.5 / total, 1 / 16 / total])
    assert found.share_of_averages == pytest.approx((1 / 2 + 1 + 1 / 16) / total)


def test_what_is_uploaded_is_the_training_from_the_average_and_not_the_mixture() -> None:
    client, algorithm = scalar_client(3.0, 6.0), FedFomoPlus()
    download = Download(point(2.0), ids(), ())
    personal = algorithm.personalise(client, download, algorithm.start_client(start_of(1, 0.0)))
    trained = algorithm.train(client, download, personal.memory)
    assert trained.upload.model.item() == 4.0
    assert trained.upload.num_examples == 1
    assert trained.model.item() == 4.0
    assert personal.model.item() != 4.0


def test_two_rounds_by_hand_whoever_has_a_foreign_target_trains_its_own_data_all_the_same() -> None:
    # Client 0 trains towards 8 and judges by 0; client 1 the other way round. With β = 10⁶ each takes the best.
    problem = scalar_problem([(8.0, 0.0), (0.0, 8.0)])
    algorithm = FedFomoPlus(beta=1e6, sharing="all")
    exchange, federation = InProcess(problem, algorithm), federation_of(problem, algorithm)
    state = run_round(federation, algorithm.start_server(problem.start(2)), 0, [0, 1], exchange).state
    # Round 0: from 0, client 0 trains to 4 and stays with g = 0; client 1 trains to 0. g⁺ = 2.
    assert state.average.tolist() == [2.0]
    state = run_round(federation, state, 1, [0, 1], exchange).state
    # Round 1: from 2, client 0 trains to 5, client 1 to 1. Client 0 (target 0) is sent 0 and takes it;
    # client 1 (target 8) has g 2, own 1, peer 4 and takes 4.
    assert exchange.personalised[0].item() == pytest.approx(0.0)
    assert exchange.personalised[1].item() == pytest.approx(4.0)
    assert state.average.tolist() == [3.0]
    # Eq. 3 with reference 2: client 0: own 5 (4 − 25)/3 = −7, peer 0 (4 − 0)/2 = 2 (in round 0 its own, 4, had
    # (0 − 16)/4 = −4). Client 1: own 1 (36 − 49)/1 = −13, peer 4 (36 − 16)/2 = 10.
    assert state.affinity.dense().tolist() == [[1 - 4 - 7, 2.0], [10.0, 1 - 13.0]]


def test_who_cannot_judge_weighs_all_candidates_alike() -> None:
    client = scalar_client(None, 6.0)
    download = Download(point(2.0), ids(4), (point(9.0),))
    personal = FedFomoPlus().personalise(client, download, Memory(None, None, EvaluationWeights.none()))
    assert personal.model.item() == pytest.approx((2 + 4 + 9) / 3)


def test_a_broken_model_has_no_share_and_no_weight() -> None:
    client = scalar_client(2.0, 6.0)
    download = Download(point(2.0), ids(4), (point(math.inf),))
    personal = FedFomoPlus(beta=1e6).personalise(client, download, Memory(None, None, EvaluationWeights.none()))
    assert personal.model.item() == pytest.approx(2.0)
    assert personal.memory.findings.increments.tolist()[1] == 0.0


@pytest.mark.parametrize("number", [0, -1])
def test_an_upload_of_nobodys_examples_is_refused(number: int) -> None:
    algorithm = FedFomoPlus()
    state = algorithm.start_server(start_of(2, 0.0))
    assert algorithm.validate(state, upload(1.0, number)) == "'num_examples' is below 1"
    twice = EvaluationWeights(ids(1, 1), numbers(0.0, 0.0), numbers(0.0, 0.0))
    assert algorithm.validate(state, upload(1.0, findings=twice)) == "'findings.ids' names a client twice"
    assert algorithm.validate(state, upload(1.0)) is None


def test_a_client_that_leaves_is_forgotten() -> None:
    algorithm = FedFomoPlus()
    state = algorithm.aggregate(algorithm.start_server(start_of(2, 0.0)), {0: upload(1.0), 1: upload(2.0)})
    after = algorithm.forget_clients(state, [1])
    assert type(after) is State
    assert (list(after.models), after.last_uploaders.tolist(), after.average.tolist()) == ([1], [1], [1.5])
    assert list(after.directions) == [1]
    assert algorithm.start_for(after, 1).tolist() == [2.0]
    kept = {"models": state.models, "last_uploaders": state.last_uploaders, "directions": state.directions}
    assert replace(after, **kept) == state


def test_memory_without_models_survives_the_codec() -> None:
    memory = FedFomoPlus().start_client(start_of(1, 0.0))
    assert unpack(Memory, pack(memory)).own is None


def test_a_report_knows_who_took_what_from_whom() -> None:
    result = simulate(points_problem(), FedFomoPlus(num_downloads=5), SimulationConfig(rounds=3))
    assert result.taken is not None
    taken = result.taken.dense()
    alike = torch.arange(6)[:, None] % 2 == torch.arange(6) % 2  # clients of even and of odd ids have the same data
    others = ~torch.eye(6, dtype=torch.bool)
    assert float(taken[alike & others].mean()) > 1.5 * float(taken[~alike].mean()) > 0
