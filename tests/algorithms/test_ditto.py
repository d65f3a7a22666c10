"""A model of one's own near the global one, worked by hand."""

from dataclasses import replace

import pytest

from fedfomo.algorithms.ditto import Ditto, Memory
from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.algorithms.local import Local
from fedfomo.core.round import run_round
from fedfomo.errors import InputError
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import (
    HALFWAY,
    ROUNDS,
    InProcess,
    client_of,
    digest,
    federation_of,
    fingerprint,
    point,
    points_problem,
    run_rounds,
    scalar_problem,
)

TWO_STEPS = replace(HALFWAY, epochs=2)


def test_the_own_model_is_pulled_and_the_global_one_is_not() -> None:
    # Both go from 0 to 4. Then the global one: 4 − 0.25 · 2(4 − 8) = 6; the own one: 4 − 0.25 · (−8 + (4 − 0)) = 5.
    client = client_of(replace(scalar_problem([(8.0, 0.0)]), trainer=TWO_STEPS), 0)
    trained = Ditto(lambda_=1.0).train(client, Download(point(0)), Memory(None))
    assert (trained.upload.model.item(), trained.model.item()) == (6.0, 5.0)
    assert trained.memory.own is trained.model


def test_the_own_model_goes_on_from_where_it_was() -> None:
    # Global: 6 and −3 average to 1.5. The own model: 5 − 0.25 · (2(5 − 8) + (5 − 1.5)) = 5.625,
    # 5.625 − 0.25 · (2(5.625 − 8) + (5.625 − 1.5)) = 5.78125.
    problem = replace(scalar_problem([(8.0, 0.0), (-4.0, 0.0)]), trainer=TWO_STEPS)
    assert simulate(problem, Ditto(lambda_=1.0), SimulationConfig(rounds=2)).models[0].item() == 5.78125


def test_the_global_model_is_fedavgs() -> None:
    problem = points_problem()
    uploads: list[object] = []
    for algorithm in (FedAvg(), Ditto()):
        exchange, federation = InProcess(problem, algorithm), federation_of(problem, algorithm)
        state = algorithm.start_server(problem.start(ROUNDS))
        for t in range(3):
            played = run_round(federation, state, t, range(6), exchange)
            state = played.state
        uploads.append((fingerprint(dict(played.uploads)), fingerprint(state)))
    assert uploads[0] == uploads[1]


def test_without_a_pull_the_own_model_is_local_trainings() -> None:
    problem = points_problem()
    alone = simulate(problem, Local(), SimulationConfig(rounds=3))
    own = simulate(problem, Ditto(lambda_=0.0), SimulationConfig(rounds=3))
    assert digest(own.models) == digest(alone.models)
    assert own.after_training == alone.after_training


def test_who_has_not_trained_uses_the_global_model_and_starts_from_it() -> None:
    # Client 0 alone trains the global model to 4; client 1 would use that, and goes from there halfway to −4.
    problem = scalar_problem([(8.0, 0.0), (-4.0, 0.0)])
    _, models = run_rounds(problem, Ditto(), InProcess(problem, Ditto()), [[0]])
    assert models[1].item() == 4.0
    exchange = InProcess(problem, Ditto())
    run_rounds(problem, Ditto(), exchange, [[0], [1]])
    assert exchange.memories[1].own.item() == 0.0


def test_an_idle_client_keeps_its_model() -> None:
    problem = scalar_problem([(8.0, 0.0), (-4.0, 0.0)])
    _, once = run_rounds(problem, Ditto(), InProcess(problem, Ditto()), [[0]])
    _, later = run_rounds(problem, Ditto(), InProcess(problem, Ditto()), [[0], [1], [1]])
    assert once[0].item() == later[0].item() == 4.0


def test_it_computes_twice_as_much() -> None:
    client = client_of(points_problem(), 0)
    Ditto().train(client, Download(points_problem().initial), Memory(None))
    assert client.effort.gradients == 2 * 12


def test_a_strength_below_zero_is_refused() -> None:
    for pull in (-1.0, float("nan")):
        with pytest.raises(InputError, match=r"'lambda' .* must be (at least 0|a number)"):
            Ditto(lambda_=pull)
