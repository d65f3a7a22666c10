"""What 16 and 8 bits a coordinate cost in accuracy: FedFomo on handwritten digits, all models through the wire's form.

Fifteen clients of five hidden groups, as in the demonstration; every download and upload is quantised and restored.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from fedfomo.algorithms import make_algorithm
from fedfomo.core import messages
from fedfomo.core.algorithm import messages_of
from fedfomo.core.client import Client
from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.round import Federation, configure_clients, run_round
from fedfomo.deployment.protocol import Envelope
from fedfomo.runs.config import RunConfig
from fedfomo.runs.config_io import build
from fedfomo.runs.setup import prepare
from fedfomo.simulation.problem import FederatedProblem

ROUNDS = 10
SEEDS = (0, 1, 2)


class Wire:
    """An exchange that does to messages what a federation with so many bits does."""

    def __init__(self, problem: FederatedProblem, algorithm: Any, bits: int) -> None:
        self.bytes = 0
        self._problem = problem
        self._algorithm = algorithm
        self._bits = bits
        self._start = problem.start(ROUNDS)
        self._memories = [algorithm.start_client(self._start) for _ in problem.clients]

    def __call__(self, round: int, downloads: Mapping[int, Any]) -> Iterator[tuple[int, Any]]:
        """Let every client personalise and train."""
        for number, download in downloads.items():
            client, arrived, _ = self.personalise(round, number, download)
            trained = self._algorithm.train(client, arrived, self._memories[number])
            self._memories[number] = trained.memory
            yield number, self._carried(messages_of(self._algorithm).upload, trained.upload)

    def personalise(self, round: int, number: int, download: Any) -> tuple[Client, Any, float]:
        """Let one client make the federated update; return it, what arrived, and the model's accuracy."""
        problem = self._problem
        data = problem.clients[number]
        client = Client(number, data, self._start, problem.model, problem.trainer, round, problem.seed)
        arrived = self._carried(messages_of(self._algorithm).download, download)
        personal = self._algorithm.personalise(client, arrived, self._memories[number])
        self._memories[number] = personal.memory
        return client, arrived, problem.model.score(personal.model, data.test).metric

    def _carried(self, schema: Any, message: Any) -> Any:
        content = Envelope({}, messages.pack(message)).to_bytes(self._bits)
        self.bytes += len(content)
        return messages.unpack(schema, Envelope.read(content).tensors)


def measure(seed: int, bits: int) -> tuple[float, int]:
    """Return the mean accuracy of all clients after the last update, and the bytes that moved."""
    problem = prepare(build(RunConfig, {"seed": seed}).setting, seed).problem
    algorithm = make_algorithm("fedfomo")
    exchange = Wire(problem, algorithm, bits)
    federation = Federation(algorithm, len(problem.clients), len(problem.initial), seed)
    state = algorithm.start_server(problem.start(ROUNDS))
    everybody = range(len(problem.clients))
    for number in range(ROUNDS):
        state = run_round(federation, state, number, everybody, exchange).state
    last = configure_clients(federation, state, ROUNDS, everybody)
    return fmean(exchange.personalise(ROUNDS, client, last[client])[2] for client in everybody), exchange.bytes


def main() -> None:
    """Print one line for every number of bits."""
    with one_torch_thread():
        for bits in (32, 16, 8):
            played = [measure(seed, bits) for seed in SEEDS]
            accuracies = " ".join(f"{accuracy:.4f}" for accuracy, _ in played)
            mean, size = fmean(accuracy for accuracy, _ in played), played[0][1]
            sys.stdout.write(f"{bits} bits: {mean:.4f} ({accuracies}), {size / 1e6:.1f} MB in all\n")


if __name__ == "__main__":
    main()
