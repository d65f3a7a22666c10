"""Small federations that tests play in.

Two kinds. In a *scalar* world a model is one number x, a client's loss is (x − target)², and every round can be
worked out by hand. In a *points* world clients classify points in the plane with a real network, large enough for
the simulator to keep it in files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.client_round import ClientOutcome, run_client_round
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model, Score
from fedfomo.core.parameters import Layout, Slot
from fedfomo.core.rng import stream
from fedfomo.core.round import Federation, configure_clients, run_round
from fedfomo.simulation.problem import FederatedProblem

ROUNDS = 4
"""How many rounds methods believe to be planned."""

HALFWAY = Sgd(learning_rate=0.25, weight_decay=0.0, learning_rate_decay=1.0, epochs=1)
"""One step x ← x − 0.25 · 2(x − target): half of the way to the training target."""


class DivergesOnce(Sgd):
    """Training that ends in what is no number in round 1, and as usual in every other."""

    def train(self, model: Model, task: TrainingJob) -> Tensor:
        trained = super().train(model, task)
        return torch.full_like(trained, torch.nan) if task.round == 1 else trained


class Scalar(nn.Module):
    """The model that is one number."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs))


def squared_gap(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs - labels) ** 2


def scalar_model(module: nn.Module | None = None) -> Model:
    return Model(module or Scalar(), squared_gap, lambda outputs, labels: -(outputs - labels).abs())


def targets(*values: float) -> Examples:
    """Return one example for each target value; with several, the loss is least at their mean."""
    return Examples(torch.zeros(len(values), 1), torch.tensor(values, dtype=torch.float32))


def scalar_client(
    target: float | None, train_target: float | None = None, id: ClientId = 0, round: int = 1, seed: int = 0
) -> Client:
    """Return a client that judges by one target and trains towards another; None means that it has no data."""
    train = targets() if train_target is None else targets(train_target)
    validation = targets() if target is None else targets(target)
    data = ClientData(train, validation, targets())
    return client_of(FederatedProblem(scalar_model(), torch.zeros(1), [data], HALFWAY, seed), 0, round, id)


def scalar_problem(clients: Sequence[tuple[float | None, float | None]], seed: int = 0) -> FederatedProblem:
    """Return a federation of (training target, validation target) that starts at x = 0."""
    data = [
        ClientData(*(targets() if t is None else targets(t) for t in (train, validation)), test=targets(0.0))
        for train, validation in clients
    ]
    return FederatedProblem(scalar_model(), torch.zeros(1), data, HALFWAY, seed)


def point(*coordinates: float) -> Tensor:
    return torch.tensor(coordinates, dtype=torch.float32)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def ids(*clients: int) -> Tensor:
    return torch.tensor(clients, dtype=torch.int64)


def perceptron() -> nn.Module:
    """1,203 parameters, 4.8 kB: more than the simulator writes into its messages."""
    return nn.Sequential(nn.Linear(2, 200), nn.ReLU(), nn.Linear(200, 3))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 100), nn.BatchNorm1d(100), nn.ReLU(), nn.Linear(100, 3))


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 200), nn.ReLU(), nn.Dropout(0.5), nn.Linear(200, 3))


def initialised(build: Callable[[], nn.Module], seed: int = 0) -> Model:
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
    model = problem.model_of(algorithm) if algorithm else problem.model
    data, start = problem.clients[client], problem.start(ROUNDS)
    return Client(client if id is None else id, data, start, model, problem.trainer, round, problem.seed)


def start_of(num_clients: int, *initial: float) -> FederationInfo:
    """Return the outset of a federation whose models are points."""
    theta = point(*initial)
    layout = Layout((Slot("x", theta.shape, 0),), len(theta), len(theta))
    return FederationInfo(theta, layout, num_clients, ROUNDS)


class InProcess:
    """The plainest exchange: plays every client here and now, and remembers what each of them keeps."""

    def __init__(
        self,
        problem: FederatedProblem,
        algorithm: AnyAlgorithm,
        unheard: Collection[ClientId] = (),
        broken: Collection[ClientId] = (),
    ) -> None:
        self.memories: dict[ClientId, Any] = {}
        self.personalised: dict[ClientId, Tensor] = {}
        self._problem = problem
        self._algorithm = algorithm
        self.unheard = unheard  # their uploads are lost on the way
        self._broken = broken  # their uploads arrive as NaN

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Iterable[tuple[ClientId, Any]]:
        uploads: dict[ClientId, Any] = {}
        for n, download in downloads.items():
            upload = self._run(round, n, download, trains=True).upload
            if upload is not None and n not in self.unheard:
                uploads[n] = not_a_number(upload) if n in self._broken else upload
        return uploads.items()

    def personalise(self, round: int, n: ClientId, download: Any) -> None:
        self._run(round, n, download, trains=False)

    def memory_of(self, n: ClientId) -> Any:
        return self.memories[n] if n in self.memories else self._algorithm.start_client(self._problem.start(ROUNDS))

    def _run(self, round: int, n: ClientId, download: Any, trains: bool) -> ClientOutcome:
        client = client_of(self._problem, n, round, algorithm=self._algorithm)
        outcome = run_client_round(
            self._algorithm, client, download, self.memory_of(n), trains, score=lambda model: None
        )
        assert outcome.personalised is not None
        self.memories[n], self.personalised[n] = outcome.memory, outcome.personalised
        return outcome


def federation_of(problem: FederatedProblem, algorithm: AnyAlgorithm) -> Federation:
    return Federation(algorithm, len(problem.clients), len(problem.initial), problem.seed)


def play(
    problem: FederatedProblem, algorithm: AnyAlgorithm, exchange: InProcess, cohorts: Sequence[Sequence[ClientId]]
) -> tuple[Any, dict[ClientId, Tensor]]:
    """Play one round per cohort and the last federated update; return the state and everybody's model."""
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
    return replace(problem, clients=[change(n, data) for n, data in enumerate(problem.clients)])


def gradient_at(model: Model, theta: Tensor, examples: Examples) -> Tensor:
    """Return the gradient of the mean loss at θ with respect to the trainable coordinates."""
    model.load(theta)
    return model.backward(examples).clone()
