"""pFedMe, worked by hand, and what it turns into."""

from dataclasses import replace

import pytest
import torch

from fedfomo.algorithms.fedavg import Download, FedAvg, Upload
from fedfomo.algorithms.pfedme import Memory, PFedMe, State, descend_envelope
from fedfomo.core.local_training import ProximalTerm, Sgd
from fedfomo.errors import InputError
from toy_problems import InProcess, client_of, point, points_problem, run_rounds, scalar_client

TENTH = Sgd(learning_rate=0.1, weight_decay=0.0, learning_rate_decay=1.0)


def test_the_personal_model_descends_on_loss_and_spring() -> None:
    # Target 8, spring of strength 2 at 0: 0 − 0.1(−16 + 0) = 1.6, then 1.6 − 0.1(−12.8 + 3.2) = 2.56.
    client = replace(scalar_client(target=None, train_target=8.0), trainer=TENTH)
    personal = point(0)
    descend_envelope(client.descent(), personal, client.data.train, ProximalTerm(point(0), 2.0), steps=2)
    assert personal.tolist() == pytest.approx([2.56])


def test_enough_steps_reach_the_minimum_of_the_envelope() -> None:
    # d/dθ (θ − 8)² + 6/2 (θ − 4)² = 0 at θ = (2 · 8 + 6 · 4)/(2 + 6) = 5.
    client = replace(scalar_client(target=None, train_target=8.0), trainer=TENTH)
    personal = point(0)
    descend_envelope(client.descent(), personal, client.data.train, ProximalTerm(point(4), 6.0), steps=100)
    assert personal.tolist() == pytest.approx([5.0])


def test_a_round_on_a_client() -> None:
    # θ = 0 − 0.25 · (−16) = 4; the copy of w goes 0.25 · 2 of the way: 2.
    client = scalar_client(target=None, train_target=8.0)
    algorithm = PFedMe(lambda_=2.0, inner_steps=1, eta=0.25)
    trained = algorithm.train(client, Download(point(0)), Memory(None))
    assert (trained.upload.model.item(), trained.model.item(), trained.memory.personal) == (2.0, 4.0, trained.model)


def test_the_server_goes_part_of_the_way_or_beyond() -> None:
    uploads = {0: Upload(point(4), 1), 1: Upload(point(8), 3)}  # average 7
    for rate, expected in ((1.0, 7.0), (0.5, 5.0), (2.0, 11.0), (0.0, 3.0)):
        assert PFedMe(beta=rate).aggregate(State(point(3), 1), uploads).model.tolist() == [expected]
        assert PFedMe(beta=rate).aggregate(State(point(3), 1), {}).model.tolist() == [3.0]


def test_statistics_go_no_further_than_the_average() -> None:
    # The first coordinate is trainable: 1 + 2 · (0.3 − 1). The second, a variance, stops at 0.3.
    after = PFedMe(beta=2.0).aggregate(State(point(1, 1), 1), {0: Upload(point(0.3, 0.3), 1)})
    assert after.model.tolist() == pytest.approx([-0.4, 0.3])


def test_who_has_never_trained_uses_the_global_model() -> None:
    client = scalar_client(target=None, train_target=None)
    assert PFedMe().personalise(client, Download(point(3)), Memory(None)).model.tolist() == [3.0]
    assert PFedMe().personalise(client, Download(point(3)), Memory(point(1))).model.tolist() == [1.0]


def test_if_the_global_copy_follows_all_the_way_it_is_fedavg() -> None:
    # With one inner step and ηλ = 1 the spring is never stretched, however stiff.
    problem = points_problem()
    averaged, _ = run_rounds(problem, FedAvg(), InProcess(problem, FedAvg()), [range(6)] * 3)
    for strength in (0.5, 4.0, 16.0):
        algorithm = PFedMe(lambda_=strength, eta=1 / strength, inner_steps=1)
        state, _ = run_rounds(problem, algorithm, InProcess(problem, algorithm), [range(6)] * 3)
        assert torch.equal(state.model, averaged.model)


def test_a_stiffer_spring_keeps_the_personal_model_nearer() -> None:
    client = client_of(points_problem(), 0)
    start = client.start.initial
    gaps: list[float] = []
    for strength in (0.0, 1.0, 4.0):
        trained = PFedMe(lambda_=strength, eta=0.0).train(client, Download(start), Memory(None))
        assert torch.equal(trained.upload.model, start)  # nobody moves the spring's other end
        gaps.append(float((trained.model - start).norm()))
    assert gaps[0] > gaps[1] > gaps[2]


def test_a_round_costs_as_much_as_fedavgs() -> None:
    for epochs in (1, 5, 7, 10):
        client = client_of(replace(points_problem(), trainer=Sgd(batch_size=5, epochs=epochs)), 0)
        PFedMe(inner_steps=5).train(client, Download(client.start.initial), Memory(None))
        assert client.effort.gradients == epochs * 12


def test_what_would_diverge_is_refused() -> None:
    with pytest.raises(InputError, match="overshoots"):
        PFedMe(lambda_=15.0, eta=0.1)
    with pytest.raises(InputError, match="diverge"):
        PFedMe(lambda_=8.0, eta=0.1).train(scalar_client(None, 8.0), Download(point(0)), Memory(None))  # 0.25 · 8
    with pytest.raises(InputError, match="inner_steps"):
        PFedMe(inner_steps=0)
