"""What a client does when an order reaches it, in whichever process that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedfomo import wire
from fedfomo.client import Client, ClientId, Start
from fedfomo.examples import ClientData
from fedfomo.federation import AnyAlgorithm, OwnNetwork, messages_of
from fedfomo.model import Model, Score
from fedfomo.simulation.tensors import References, TensorFiles
from fedfomo.training import LocalTrainer


@dataclass(frozen=True)
class Order:
    """One client's work in one round; tensors are named, not carried."""

    round: int
    client: ClientId
    download: References
    memory: References | None  # None: the client has none yet
    trains: bool  # False: personalise only
    is_scored: bool  # on the client's test examples


@dataclass(frozen=True)
class Outcome:
    """What came of an order."""

    client: ClientId
    model: References  # what the client would use now
    memory: References
    upload: References | None
    score_after_update: Score | None
    score_after_training: Score | None
    checksums: Mapping[str, str]


@dataclass(frozen=True)
class Problem:
    """Everything that is given before a method is chosen."""

    model: Model
    initial: Tensor
    clients: Sequence[ClientData]
    trainer: LocalTrainer
    seed: int
    groups: tuple[int, ...] | None = None  # each client's true distribution, where a scenario knows it

    def start(self, rounds: int) -> Start:
        """Return what server and clients know before the first of so many rounds."""
        return Start(self.initial, self.model.layout, len(self.clients), rounds, self.groups)

    def model_of(self, algorithm: AnyAlgorithm) -> Model:
        """Return what clients of an algorithm predict with: this model, or one that is built around it."""
        return self.model.rebuilt(algorithm.network) if isinstance(algorithm, OwnNetwork) else self.model


def contributes(data: ClientData) -> bool:
    """Tell whether a client has data both to train on and to judge by; if not, nothing of it is sent on."""
    return len(data.train) > 0 and len(data.validation) > 0


class ClientSide:
    """All clients' halves of a method."""

    def __init__(self, problem: Problem, start: Start, algorithm: AnyAlgorithm, files: TensorFiles) -> None:
        self._problem = problem
        self._start = start
        self._model = problem.model_of(algorithm)
        self._algorithm = algorithm
        self._messages = messages_of(algorithm)
        self._files = files

    def carry_out(self, order: Order) -> Outcome:
        """Personalise, train if asked to, score if asked to, and leave the results in a file."""
        client = self._client(order)
        download = wire.unpack(self._messages.download, self._files.load(order.download))
        personal = self._algorithm.personalise(client, download, self._memory(order))
        after_update = self._score(client, personal.model) if order.is_scored else None
        results: dict[str, Any] = {"model": personal.model, "memory": personal.memory}
        after_training = None
        if order.trains:
            trained = self._algorithm.train(client, download, personal.memory)
            after_training = self._score(client, trained.model) if order.is_scored else None
            results |= {"memory": trained.memory, "upload": trained.upload}
        references = self._keep(order, results)
        self._files.forget()
        checksums, self._files.checksums = self._files.checksums, {}
        return Outcome(
            client=order.client,
            model=references["model"],
            memory=references["memory"],
            upload=references.get("upload"),
            score_after_update=after_update,
            score_after_training=after_training,
            checksums=checksums,
        )

    def _client(self, order: Order) -> Client:
        problem = self._problem
        data = problem.clients[order.client]
        return Client(order.client, data, self._start, self._model, problem.trainer, order.round, problem.seed)

    def _memory(self, order: Order) -> Any:
        if order.memory is None:
            return self._algorithm.start_client(self._start)
        return wire.unpack(self._messages.memory, self._files.load(order.memory))

    def _score(self, client: Client, model: Tensor) -> Score:
        return self._model.score(model, client.data.test)

    def _keep(self, order: Order, results: dict[str, Any]) -> dict[str, References]:
        """Write what the client leaves behind; only the final, trainless pass needs the model kept for itself."""
        if order.trains:
            results = {**results, "model": None}
        flat = {f"{part}:{field}": tensor for part, value in results.items() for field, tensor in _pack(value).items()}
        places = self._files.save(f"round-{order.round:05d}-client-{order.client:05d}.safetensors", flat)
        return {
            part: {name.split(":", 1)[1]: place for name, place in places.items() if name.startswith(part + ":")}
            for part in results
        }


def _pack(value: Any) -> wire.Flat:
    return {"": value} if isinstance(value, Tensor) else wire.pack(value)
