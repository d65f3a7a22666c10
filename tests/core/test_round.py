"""The round, without any method's particulars."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedfomo.algorithms.fedavg import Download, FedAvg, State, Upload
from fedfomo.algorithms.fedfomo import FedFomo
from fedfomo.algorithms.local import Local, Memory
from fedfomo.core.algorithm import messages_of
from fedfomo.core.round import (
    CommunicationCost,
    Downloads,
    Federation,
    cohort_size,
    configure_clients,
    run_round,
    traffic_of,
)
from toy_problems import (
    ROUNDS,
    InProcess,
    client_of,
    federation_of,
    point,
    points_problem,
    scalar_client,
    scalar_problem,
)

THREE = Federation(FedAvg(), num_clients=3, model_size=1, seed=0)


def test_uploads_reach_the_method_and_become_the_next_state() -> None:
    problem = scalar_problem([(8.0, 0.0), (-4.0, 0.0)])
    played = run_round(federation_of(problem, FedAvg()), State(point(0)), 0, [0, 1], InProcess(problem, FedAvg()))
    assert {n: upload.model.item() for n, upload in played.uploads.items()} == {0: 4.0, 1: -2.0}
    assert played.state.model.item() == 1.0
    assert played.refused == {}


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (point(math.nan), "'model' is not finite"),
        (point(1, 2), "'model' has 2 coordinates, the model has 1"),
        (torch.zeros(1, dtype=torch.float64), "'model' is float64[1], not parameters"),
    ],
)
def test_a_faulty_upload_is_refused_with_a_reason_and_the_rest_counts(model: Tensor, fault: str) -> None:
    uploads = {0: Upload(model, 5), 2: Upload(point(6), 5)}
    played = run_round(THREE, State(point(0)), 0, [0, 2], lambda t, downloads: uploads.items())
    assert played.refused == {0: fault}
    assert sorted(played.uploads) == [2]
    assert played.state.model.item() == 6.0


def test_uploads_are_collected_in_the_order_of_ids_whoever_answers_first() -> None:
    uploads = {n: Upload(point(n), 5) for n in (2, 0, 1)}
    played = run_round(THREE, State(point(0)), 0, [0, 1, 2], lambda t, downloads: uploads.items())
    assert list(played.uploads) == [0, 1, 2]


def test_only_faulty_uploads_are_as_good_as_none() -> None:
    state = State(point(7))
    played = run_round(THREE, state, 0, [0], lambda t, downloads: [(0, Upload(point(math.inf), 5))])
    assert played.state.model is state.model


def test_refused_uploads_have_travelled_all_the_same() -> None:
    played = run_round(THREE, State(point(0)), 0, [0, 1], lambda t, downloads: [(0, Upload(point(math.nan), 5))])
    assert (played.traffic.models_down, played.traffic.models_up) == (2.0, 1.0)


def test_an_exchange_sees_the_cohorts_downloads_only() -> None:
    seen: list[list[int]] = []
    run_round(THREE, State(point(0)), 4, [2, 0], lambda t, downloads: seen.append([t, *downloads]) or ())  # type: ignore[func-returns-value]
    assert seen == [[4, 2, 0]]


def test_training_draws_anew_for_every_round_client_and_seed() -> None:
    problem = points_problem(num_clients=1)

    def trained(t: int, client: int, seed: int) -> bytes:
        one = client_of(replace(problem, seed=seed), 0, t, id=client)
        return one.train(problem.initial).numpy().tobytes()

    results = [trained(0, 0, 0), trained(1, 0, 0), trained(0, 1, 0), trained(0, 0, 1)]
    assert len(set(results)) == 4
    assert trained(0, 1, 0) == results[2]


def test_traffic_adds_up() -> None:
    down = {0: Download(point(1, 2)), 1: Download(point(1, 2))}
    up = {1: Upload(point(1, 2), 3)}
    once = traffic_of(2, down, up)
    assert once == CommunicationCost(2.0, 1.0, 16, 16)
    assert once + once == CommunicationCost(4.0, 2.0, 32, 32)
    assert CommunicationCost() + once == once


def test_what_a_client_is_sent_depends_on_seed_round_and_client_and_not_on_who_else_is_there() -> None:
    algorithm = FedFomo(num_downloads=3, epsilon=1.0, epsilon_decay=0.0)
    problem = scalar_problem([(8.0, 8.0)] * 12)
    federation = federation_of(problem, algorithm)
    start = algorithm.start_server(problem.start(ROUNDS))
    state = run_round(federation, start, 0, range(12), InProcess(problem, algorithm)).state

    def sent(t: int, cohort: list[int], seed: int = 0) -> list[int]:
        of = Federation(algorithm, 12, 1, seed)
        return configure_clients(of, state, t, cohort)[5].ids.tolist()

    assert sent(1, [5]) == sent(1, [0, 5, 9]) == sent(1, [9, 5])
    assert len({tuple(sent(t, [5])) for t in range(8)}) >= 7
    assert sent(1, [5]) != sent(1, [5], seed=1)


def test_a_download_is_chosen_when_it_is_first_read() -> None:
    chosen: list[int] = []

    def configure(client: int) -> int:
        chosen.append(client)
        return 10 * client

    downloads = Downloads(configure, [3, 1, 2])
    assert (len(downloads), list(downloads), 2 in downloads, 5 in downloads, chosen) == (3, [3, 1, 2], True, False, [])
    assert [downloads[1], downloads[1], chosen] == [10, 10, [1]]
    assert dict(downloads) == {3: 30, 1: 10, 2: 20}
    with pytest.raises(KeyError):
        downloads[5]


def test_message_types_are_read_off_the_annotations() -> None:
    of_fedavg, of_local = messages_of(FedAvg()), messages_of(Local())
    assert (of_fedavg.state, of_fedavg.download, of_fedavg.upload, of_fedavg.memory) == (
        State,
        Download,
        Upload,
        type(None),
    )
    assert (of_local.state, of_local.upload, of_local.memory) == (type(None), type(None), Memory)


def test_a_client_judges_models_on_its_validation_data() -> None:
    losses = scalar_client(target=3.0, train_target=100.0).validation_losses([point(1), point(3)])
    assert losses.tolist() == [4.0, 0.0]
    assert losses.dtype == torch.float64
    without = scalar_client(target=None).validation_losses([point(1), point(3)])
    assert bool(without.isnan().all())


def test_a_client_trains_on_its_training_data() -> None:
    client = scalar_client(target=0.0, train_target=8.0)
    assert client.train(point(0)).tolist() == [4.0]
    assert client.num_trainable == 1


@pytest.mark.parametrize(("num_clients", "participation", "size"), [(100, 0.29, 29), (100, 0.1, 10), (5, 0.1, 1)])
def test_the_size_of_a_cohort_survives_rounding(num_clients: int, participation: float, size: int) -> None:
    assert cohort_size(num_clients, participation) == size


def test_uploads_that_nobody_asked_for_are_refused() -> None:
    uploads = {n: Upload(point(9), 5) for n in (-1, 1, 2, 99)} | {0: None}
    played = run_round(THREE, State(point(0)), 0, [0, 1], lambda t, downloads: uploads.items())
    assert played.refused == {
        -1: "nobody asked for it",
        0: "nothing arrived",
        2: "nobody asked for it",
        99: "nobody asked for it",
    }
    assert played.state.model.item() == 9.0
