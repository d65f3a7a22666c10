"""The laws that every method obeys: functions of a method that raise `AssertionError` where it breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedfomo.algorithms import make_algorithm
from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import ClientId
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.rng import stream
from fedfomo.core.round import Federation, configure_clients, run_round, sample_clients
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from fedfomo.simulation.transport import Failures, draw_failures
from fedfomo.testing.toy_federation import (
    ROUNDS,
    DivergesOnce,
    InProcess,
    client_of,
    digest,
    digest_of,
    federation_of,
    fingerprint,
    not_a_number,
    points_problem,
    run_rounds,
    with_batch_norm,
    with_data,
    with_dropout,
)

Law = Callable[[AnyAlgorithm], None]

TWO_ROUNDS = SimulationConfig(rounds=2)
EVERYBODY_TWICE = [range(6)] * 2


def _run(algorithm: AnyAlgorithm, problem: FederatedProblem, config: SimulationConfig = TWO_ROUNDS) -> str:
    return digest_of(simulate(problem, algorithm, config))


def no_function_changes_its_arguments(algorithm: AnyAlgorithm) -> None:
    """State, downloads, uploads and memories hold the same bytes after every call as before."""
    problem = points_problem().split(algorithm)
    clients = range(len(problem.clients))
    initial = problem.initial.clone()
    before: list[tuple[Any, Any]] = []

    def watched(value: Any) -> Any:
        before.append((value, fingerprint(value)))
        return value

    state = watched(algorithm.start_server(problem.start(ROUNDS)))
    memories = {n: watched(algorithm.start_client(problem.start(ROUNDS))) for n in clients}
    for t in range(3):
        uploads: dict[int, Any] = {}
        downloads = {n: watched(algorithm.configure_client(state, n, stream(0, t, n))) for n in clients}
        for n in clients:
            client = client_of(problem, n, t, algorithm=algorithm)
            personal = algorithm.personalise(client, downloads[n], memories[n])
            watched(personal.memory)
            kept = personal.model.clone()
            trained = algorithm.train(client, downloads[n], personal.memory)
            assert torch.equal(personal.model, kept), "training rewrote the personalised model"
            uploads[n], memories[n] = watched(trained.upload), watched(trained.memory)
        state = watched(algorithm.aggregate(state, uploads))
    for value, then in before:
        assert fingerprint(value) == then
    assert torch.equal(problem.initial, initial)


def functions_are_repeatable(algorithm: AnyAlgorithm) -> None:
    """Calling anything a second time with the same arguments gives the same bits: nothing is remembered inside."""
    problem = points_problem().split(algorithm)
    exchange = InProcess(problem, algorithm)
    state, _ = run_rounds(problem, algorithm, exchange, EVERYBODY_TWICE)
    client = client_of(problem, 1, 2, algorithm=algorithm)
    memory, kept = exchange.memories[1], client.model.kept_values

    def once() -> list[Any]:
        client.model.kept_values = kept
        download = algorithm.configure_client(state, 1, stream(3))
        personal = algorithm.personalise(client, download, memory)
        trained = algorithm.train(client, download, personal.memory)
        after = algorithm.aggregate(state, {1: trained.upload})
        return [fingerprint(x) for x in (download, personal.memory, personal.model, trained.upload, after)]

    first = once()
    problem.model.load(torch.randn(len(problem.initial)))  # whatever is left in the network
    assert once() == first


def the_seed_decides_everything(algorithm: AnyAlgorithm) -> None:
    """The same seed gives the same bits, another seed gives others, and torch's own generator is not asked."""
    torch.manual_seed(1)
    first = _run(algorithm, points_problem(seed=0))
    torch.manual_seed(2)
    assert _run(algorithm, points_problem(seed=0)) == first
    assert _run(algorithm, points_problem(seed=1)) != first


def everything_survives_the_wire(algorithm: AnyAlgorithm) -> None:
    """State, downloads, uploads and memories come back from the codec bit for bit, as what they were."""
    problem = points_problem().split(algorithm)
    declared = messages_of(algorithm)
    carried: list[tuple[Any, Any]] = []

    class Recorded(InProcess):
        def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Iterable[tuple[ClientId, Any]]:
            uploads = dict(super().__call__(round, downloads))
            carried.extend((declared.download, download) for download in downloads.values())
            carried.extend((declared.upload, upload) for upload in uploads.values())
            carried.extend((declared.memory, memory) for memory in self.memories.values())
            return uploads.items()

    exchange = Recorded(problem, algorithm)
    federation = federation_of(problem, algorithm)
    state = algorithm.start_server(problem.start(ROUNDS))
    carried.append((declared.state, state))
    carried.append((declared.memory, algorithm.start_client(problem.start(ROUNDS))))
    for t, cohort in enumerate([range(6), range(3), range(2, 6)]):
        state = run_round(federation, state, t, cohort, exchange).state
        carried.append((declared.state, state))
    for schema, message in carried:
        rebuilt = messages.unpack(schema, messages.pack(message))
        assert type(rebuilt) is type(message)
        assert fingerprint(rebuilt) == fingerprint(message)
        assert messages.validate(schema, rebuilt, federation.model_size, federation.num_clients) is None


def the_order_of_clients_is_irrelevant(algorithm: AnyAlgorithm) -> None:
    """Whoever is served first, and whoever answers first, the round is the same."""
    problem = points_problem().split(algorithm)
    results: list[Any] = []
    for cohort in ([0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [3, 0, 5, 1, 4, 2]):
        state, models = run_rounds(problem, algorithm, InProcess(problem, algorithm), [cohort] * 2)
        results.append((fingerprint(state), digest(models)))
    assert results[0] == results[1] == results[2]


def the_number_of_workers_is_irrelevant(algorithm: AnyAlgorithm) -> None:
    """The main process alone, or one, two or three others: models, scores and traffic are the same."""
    problem = points_problem().split(algorithm)
    assert len({_run(algorithm, problem, replace(TWO_ROUNDS, workers=workers)) for workers in range(4)}) == 1


def the_simulator_plays_the_rounds_of_a_plain_loop(algorithm: AnyAlgorithm) -> None:
    """Files, references and memories kept for absent clients change no bit."""
    problem = points_problem().split(algorithm)
    for config in (SimulationConfig(rounds=ROUNDS), SimulationConfig(rounds=ROUNDS, participation=0.5)):
        cohorts = [sample_clients(6, config.participation, problem.seed, t) for t in range(config.rounds)]
        _, models = run_rounds(problem, algorithm, InProcess(problem, algorithm), cohorts)
        assert digest(simulate(problem, algorithm, config).models) == digest(models)


def clients_that_fail_have_no_part_in_the_round(algorithm: AnyAlgorithm) -> None:
    """A client that drops out keeps its memory; one that is late has trained, but its upload is in no round."""
    problem, config = points_problem(), SimulationConfig(rounds=ROUNDS, client_dropout=0.25, late_fraction=0.25)
    federation, exchange = federation_of(problem, algorithm), InProcess(problem, algorithm)
    state = _start(problem, algorithm)
    failed: list[Failures] = []
    for t in range(ROUNDS):
        failed.append(draw_failures(range(6), 6, config.client_dropout, config.late_fraction, problem.seed, t))
        exchange.unheard = failed[-1].late
        state = run_round(federation, state, t, [n for n in range(6) if n not in failed[-1].dropped], exchange).state
    assert any(failures.dropped for failures in failed)
    assert any(failures.late for failures in failed)
    for n, download in configure_clients(federation, state, ROUNDS, range(6)).items():
        exchange.personalise(ROUNDS, n, download)
    result = simulate(problem, algorithm, config)
    assert digest(result.models) == digest(exchange.personalised)
    assert all(bool(torch.isfinite(model).all()) for model in result.models.values())
    assert digest_of(result) == _run(algorithm, problem, replace(config, workers=2))


def part_of_the_clients_is_enough(algorithm: AnyAlgorithm) -> None:
    """With a third of the clients a round, everybody ends with a usable model, reproducibly."""
    problem, config = points_problem(), SimulationConfig(rounds=4, participation=0.34)
    result = simulate(problem, algorithm, config)
    assert sorted(result.models) == list(range(6))
    assert all(bool(torch.isfinite(model).all()) for model in result.models.values())
    assert digest_of(result) == _run(algorithm, problem, replace(config, workers=2))


def an_absent_client_is_tolerated(algorithm: AnyAlgorithm) -> None:
    """Uploads of one client, or of all, may be lost in every round."""
    problem = points_problem().split(algorithm)
    for unheard in ([2], range(6)):
        _, models = run_rounds(problem, algorithm, InProcess(problem, algorithm, unheard=unheard), EVERYBODY_TWICE)
        assert all(bool(torch.isfinite(model).all()) for model in models.values())


def a_round_that_nobody_answers_leaves_the_models_alone(algorithm: AnyAlgorithm) -> None:
    """Collecting nothing loses nothing: later rounds can be run, and what a client is sent stays finite."""
    problem = points_problem().split(algorithm)
    federation = federation_of(problem, algorithm)
    exchange = InProcess(problem, algorithm)
    state = run_round(federation, algorithm.start_server(problem.start(ROUNDS)), 0, range(6), exchange).state
    state = run_round(federation, state, 1, range(6), lambda round, downloads: ()).state  # noqa: A006
    state = run_round(federation, state, 2, range(6), exchange).state
    for download in configure_clients(federation, state, 3, range(6)).values():
        assert all(bool(torch.isfinite(t).all()) for t in messages.pack(download).values() if t.is_floating_point())


def a_refused_upload_is_as_good_as_none(algorithm: AnyAlgorithm) -> None:
    """A client that sends NaN leaves everybody's result as it would be had it sent nothing."""
    problem = points_problem().split(algorithm)
    federation = federation_of(problem, algorithm)
    outcomes: list[Any] = []
    for faults in ({"broken": [2]}, {"unheard": [2]}):
        exchange = InProcess(problem, algorithm, **faults)
        state, models = run_rounds(problem, algorithm, exchange, EVERYBODY_TWICE)
        outcomes.append((fingerprint(state), digest(models)))
    assert outcomes[0] == outcomes[1]
    upload = dict(InProcess(problem, algorithm)(0, configure_clients(federation, _start(problem, algorithm), 0, [2])))[
        2
    ]
    if messages.pack(upload):  # there is something to spoil
        assert _refused(federation, problem, algorithm, not_a_number(upload)) == [2]


def a_training_that_diverges_is_forgotten(algorithm: AnyAlgorithm) -> None:
    """After a round whose steps lead to no number, everybody goes on from where it was."""
    problem = points_problem().split(algorithm)
    result = simulate(
        replace(problem, trainer=DivergesOnce(batch_size=5, epochs=1)), algorithm, SimulationConfig(rounds=3)
    )
    for client, model in result.models.items():
        assert bool(torch.isfinite(model).all()), f"client {client} never recovered"
        assert not torch.equal(model, problem.initial), f"client {client} stayed where it began"


def who_lacks_data_receives_and_does_not_contribute(algorithm: AnyAlgorithm) -> None:
    """Clients with 0 or 1 examples, or without validation data, end with a model and change nobody else's."""
    problem = points_problem(sizes={0: (0, 0), 1: (1, 0), 2: (12, 0), 3: (0, 4)}).split(algorithm)
    idle = range(4)
    result = simulate(problem, algorithm, TWO_ROUNDS)
    assert sorted(result.models) == list(range(6))
    others = {n: result.models[n] for n in (4, 5)}

    def moved(client: int, data: ClientData) -> ClientData:
        return replace(data, train=Examples(data.train.inputs + 3, data.train.labels)) if client in idle else data

    again = simulate(with_data(problem, moved), algorithm, TWO_ROUNDS)
    assert digest({n: again.models[n] for n in (4, 5)}) == digest(others)
    assert set(result.after_training) == {1, 2, 4, 5}
    for client in idle:
        assert bool(torch.isfinite(result.models[client]).all())
        if result.traffic.models_down:
            assert not torch.equal(result.models[client], problem.initial), f"client {client} received nothing"


def networks_with_buffers_work(algorithm: AnyAlgorithm) -> None:
    """BatchNorm's running statistics move, mix and stay finite; its counters stay out of the way."""
    problem = points_problem(build=with_batch_norm).split(algorithm)
    result = simulate(problem, algorithm, TWO_ROUNDS)
    statistics = slice(problem.model.layout.num_trainable, None)
    for model in result.models.values():
        assert bool(torch.isfinite(model).all())
        assert not torch.equal(model[statistics], problem.initial[statistics])
    assert digest_of(result) == _run(algorithm, points_problem(build=with_batch_norm), replace(TWO_ROUNDS, workers=1))


def networks_with_dropout_work(algorithm: AnyAlgorithm) -> None:
    """Dropout draws from the client's own stream, in whatever process."""
    problem = points_problem(build=with_dropout).split(algorithm)
    torch.manual_seed(1)
    first = _run(algorithm, problem)
    torch.manual_seed(2)
    assert _run(algorithm, problem, replace(TWO_ROUNDS, workers=1)) == first


def the_test_examples_are_never_read(algorithm: AnyAlgorithm) -> None:
    """With rubbish for test data, the models are the same."""
    problem = points_problem().split(algorithm)

    def spoilt(client: int, data: ClientData) -> ClientData:
        return replace(data, test=_rubbish(data.test))

    models = simulate(problem, algorithm, TWO_ROUNDS).models
    assert digest(simulate(with_data(problem, spoilt), algorithm, TWO_ROUNDS).models) == digest(models)


def one_client_and_two_clients_are_enough(algorithm: AnyAlgorithm) -> None:
    """The smallest federations run, with more workers than clients too."""
    for num_clients, workers in ((1, 2), (2, 0)):
        problem = points_problem(num_clients).split(algorithm)
        result = simulate(problem, algorithm, SimulationConfig(rounds=3, workers=workers))
        assert sorted(result.models) == list(range(num_clients))
        assert all(bool(torch.isfinite(model).all()) for model in result.models.values())


def _start(problem: FederatedProblem, algorithm: AnyAlgorithm) -> Any:
    return algorithm.start_server(problem.split(algorithm).start(ROUNDS))


def _refused(federation: Federation, problem: FederatedProblem, algorithm: AnyAlgorithm, upload: Any) -> list[int]:
    completed = run_round(federation, _start(problem, algorithm), 0, [2], lambda round, downloads: [(2, upload)])  # noqa: A006
    return sorted(completed.refused)


def _rubbish(examples: Examples) -> Examples:
    inputs: Tensor = torch.full_like(examples.inputs, torch.nan)
    return Examples(inputs, torch.zeros_like(examples.labels))


_LAWS: tuple[Law, ...] = (
    no_function_changes_its_arguments,
    functions_are_repeatable,
    the_seed_decides_everything,
    everything_survives_the_wire,
    the_order_of_clients_is_irrelevant,
    the_number_of_workers_is_irrelevant,
    the_simulator_plays_the_rounds_of_a_plain_loop,
    clients_that_fail_have_no_part_in_the_round,
    part_of_the_clients_is_enough,
    an_absent_client_is_tolerated,
    a_round_that_nobody_answers_leaves_the_models_alone,
    a_refused_upload_is_as_good_as_none,
    a_training_that_diverges_is_forgotten,
    who_lacks_data_receives_and_does_not_contribute,
    networks_with_buffers_work,
    networks_with_dropout_work,
    the_test_examples_are_never_read,
    one_client_and_two_clients_are_enough,
)

LAWS: tuple[Law, ...] = tuple(one_torch_thread()(law) for law in _LAWS)
"""All laws. They compute in one thread, as runs do: more of them add up in another order, which changes last bits."""


def check_algorithm(algorithm: type[AnyAlgorithm] | AnyAlgorithm | str) -> None:
    """Apply all laws to a method; raise `AssertionError`, with the law's name, at the first that it breaks."""
    made = make_algorithm(algorithm)
    for law in LAWS:
        try:
            law(made)
        except AssertionError as error:
            error.add_note(f"the law that is broken: {law.__name__.replace('_', ' ')}")
            raise
