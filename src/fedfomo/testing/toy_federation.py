"""A small federation of clients that classify points in the plane, run by a plain loop and hashed bit by bit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.client import Client, ClientId
from fedfomo.core.client_round import ClientOutcome, run_client_round
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import LocalState, Sgd, TrainingJob
from fedfomo.core.model import Model, Score
from fedfomo.core.rng import stream
from fedfomo.core.round import Federation, configure_clients, run_round
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult

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
        client = replace(client, local=LocalState(self._local.get(n, {})), is_final=not trains)
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


def digest_of(result: RunResult) -> str:
    """Hash models, scores and traffic of a run."""
    return digest(result.models, result.after_update, result.after_training) + repr(result.traffic)
