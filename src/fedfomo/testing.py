"""The laws that every method obeys, for whoever writes one.

    from fedfomo.testing import check_algorithm

    check_algorithm(MyMethod)

Each law is a function of a method that raises `AssertionError` where the method breaks it. With pytest, one test a law:

    @pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
    def test_law(law):
        law(MyMethod())

They run in a small federation of six clients that classify points in the plane (`points_problem`), by the
simulator and by a plain loop (`run_rounds`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedfomo.algorithms import make_algorithm
from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import Client, ClientId
from fedfomo.core.client_round import ClientOutcome, run_client_round
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.local_training import LocalState, Sgd, TrainingJob
from fedfomo.core.model import Model, Score
from fedfomo.core.rng import stream
from fedfomo.core.round import Federation, configure_clients, run_round, sample_clients
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult, simulate
from fedfomo.simulation.transport import Failures, draw_failures

ROUNDS = 4
"""How many rounds methods believe to be planned."""


class DivergesOnce(Sgd):
    """Training that ends in what is no number in round 1, and as usual in every other."""

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        """Train; in round 1, return NaN."""
        trained = super().train(model, task)
        return torch.full_like(trained, torch.nan) if task.round == 1 else trained


def perceptron() -> nn.Module:
    """1,203 parameters, 4.8 kB: more than the simulator writes into its messages."""
    return nn.Sequential(nn.Linear(2, 200), nn.ReLU(), nn.Linear(200, 3))


def with_batch_norm() -> nn.Module:
    """Return a network with buffers."""
    return nn.Sequential(nn.Linear(2, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 3))


def with_dropout() -> nn.Module:
    """Return a network that draws random numbers."""
    return nn.Sequential(nn.Linear(2, 200), nn.ReLU(), nn.Dropout(0.5), nn.Linear(200, 3))


def initialised(build: Callable[[], nn.Module], seed: int = 0) -> Model:
    """Return a model with parameters drawn from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(build())


def points(size: int, centre: int, rng: torch.Generator) -> Examples:
    """Draw points around three corners; a client's centre turns the corners, so that clients disagree."""
    labels = torch.randint(3, (size,), generator=rng)
    angles = (labels + centre % 2 / 2) * (2 * torch.pi / 3)
    corners = torch.stack((angles.cos(), angles.sin()), dim=1)
    return Examples(corners + 0.5 * torch.randn(size, 2, generator=rng), labels)


def points_problem(
    num_clients: int = 6,
    seed: int = 0,
    build: Callable[[], nn.Module] = perceptron,
    sizes: Mapping[ClientId, tuple[int, int]] | None = None,
) -> FederatedProblem:
    """Return a federation with 12 training, 4 validation and 4 test examples a client, or other `sizes`."""
    data: list[ClientData] = []
    for client in range(num_clients):
        rng = stream(7, "points", client)
        train, validation = (sizes or {}).get(client, (12, 4))
        data.append(ClientData(*(points(size, client, rng) for size in (train, validation, 4))))
    model = initialised(build)
    groups = tuple(client % 2 for client in range(num_clients))
    return FederatedProblem(model, model.read(), data, Sgd(batch_size=5, epochs=1), seed, groups)


def client_of(
    problem: FederatedProblem,
    client: ClientId,
    round: int = 0,
    id: ClientId | None = None,
    algorithm: AnyAlgorithm | None = None,
) -> Client:
    """Return one of a problem's clients in some round, as an algorithm meets it."""
    problem = problem.split(algorithm) if algorithm else problem
    model = problem.model_of(algorithm) if algorithm else problem.model
    data, start = problem.clients[client], problem.start(ROUNDS)
    return Client(client if id is None else id, data, start, model, problem.trainer, round, problem.seed)


class InProcess:
    """The plainest exchange: runs every client here and now, and remembers what each of them keeps."""

    def __init__(
        self,
        problem: FederatedProblem,
        algorithm: AnyAlgorithm,
        unheard: Collection[ClientId] = (),
        broken: Collection[ClientId] = (),
    ) -> None:
        self.memories: dict[ClientId, Any] = {}
        self.personalised: dict[ClientId, Tensor] = {}
        self._problem = problem.split(algorithm)
        self._algorithm = algorithm
        self._local: dict[ClientId, Mapping[str, Tensor]] = {}
        self.unheard = unheard  # their uploads are lost on the way
        self._broken = broken  # their uploads arrive as NaN

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Iterable[tuple[ClientId, Any]]:
        """Let clients update, train and upload."""
        uploads: dict[ClientId, Any] = {}
        for n, download in downloads.items():
            outcome = self._run(round, n, download, trains=True)
            if outcome.has_upload and n not in self.unheard:
                uploads[n] = not_a_number(outcome.upload) if n in self._broken else outcome.upload
        return uploads.items()

    def personalise(self, round: int, n: ClientId, download: Any) -> None:
        """Let a client make the last federated update."""
        self._run(round, n, download, trains=False)

    def memory_of(self, n: ClientId) -> Any:
        """Return what a client keeps."""
        return self.memories[n] if n in self.memories else self._algorithm.start_client(self._problem.start(ROUNDS))

    def _run(self, round: int, n: ClientId, download: Any, trains: bool) -> ClientOutcome:
        client = client_of(self._problem, n, round, algorithm=self._algorithm)
        client = replace(client, local=LocalState(self._local.get(n, {})))
        outcome = run_client_round(
            self._algorithm, client, download, self.memory_of(n), trains, score=lambda model: None
        )
        if outcome.personalised is not None:
            self.personalised[n] = client.model.export(outcome.personalised, outcome.kept_values)
        self.memories[n], self._local[n] = outcome.memory, outcome.local
        return outcome


def federation_of(problem: FederatedProblem, algorithm: AnyAlgorithm) -> Federation:
    """Return the server side of a problem."""
    return Federation(algorithm, len(problem.clients), len(problem.split(algorithm).initial), problem.seed)


def run_rounds(
    problem: FederatedProblem, algorithm: AnyAlgorithm, exchange: InProcess, cohorts: Sequence[Sequence[ClientId]]
) -> tuple[Any, dict[ClientId, Tensor]]:
    """Run one round per cohort and the last federated update; return the state and everybody's model."""
    problem = problem.split(algorithm)
    federation = federation_of(problem, algorithm)
    state = algorithm.start_server(problem.start(ROUNDS))
    for t, cohort in enumerate(cohorts):
        state = run_round(federation, state, t, cohort, exchange).state
    downloads = configure_clients(federation, state, len(cohorts), range(len(problem.clients)))
    for n, download in downloads.items():
        exchange.personalise(len(cohorts), n, download)
    return state, exchange.personalised


def not_a_number(message: Any) -> Any:
    """Spoil every floating-point value of a message."""
    flat = {
        name: torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor
        for name, tensor in messages.pack(message).items()
    }
    return messages.unpack(type(message), flat)


def fingerprint(message: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return everything in a message, bit for bit."""
    return {
        name: (str(tensor.dtype), tuple(tensor.shape), tensor.contiguous().numpy().tobytes())
        for name, tensor in sorted(messages.pack(message).items())
    }


def digest(models: Mapping[ClientId, Tensor], *scores: Mapping[ClientId, Score]) -> str:
    """Hash models bit for bit, and scores in full precision."""
    content = [fingerprint(dict(sorted(models.items()))), *(sorted(score.items()) for score in scores)]
    return hashlib.sha256(repr(content).encode()).hexdigest()


def with_data(problem: FederatedProblem, change: Callable[[ClientId, ClientData], ClientData]) -> FederatedProblem:
    """Return the problem with the data of some clients changed."""
    return replace(problem, clients=[change(n, data) for n, data in enumerate(problem.clients)])


Law = Callable[[AnyAlgorithm], None]

TWO_ROUNDS = SimulationConfig(rounds=2)
EVERYBODY_TWICE = [range(6)] * 2


def digest_of(result: RunResult) -> str:
    """Hash models, scores and traffic of a run."""
    return digest(result.models, result.after_update, result.after_training) + repr(result.traffic)


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


def clients_that_fail_are_as_good_as_unasked_or_unheard(algorithm: AnyAlgorithm) -> None:
    """Who drops out stays as it was; who is late has moved on, and no round, then or later, has its upload in it."""
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
    clients_that_fail_are_as_good_as_unasked_or_unheard,
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
