"""The simulator's transport: downloads become jobs of clients on this machine, their results become uploads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import ClientId
from fedfomo.core.model import Score
from fedfomo.core.rng import stream
from fedfomo.engine.tensor_store import References, TensorStore
from fedfomo.privacy.accountant import added, from_rows, to_rows
from fedfomo.simulation.client_batching import Timings
from fedfomo.simulation.executors import Executor
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.process_utils import trim_heap
from fedfomo.simulation.scheduling import BatchPolicy, ClientJob, ClientResult, purpose_of

TRIMMED_AFTER = 1000  # results
DIVERGED = "its training diverged, and is forgotten"


@dataclass(frozen=True)
class Failures:
    """Clients that fail in one round, in ascending order.

    The server knows neither beforehand: it has chosen them and sent them their downloads. Who drops out is left as it
    was before the round. Who is late has worked, remembers it and has paid for it; but its upload counts neither then
    nor later, for a round that is closed stays closed.
    """

    dropped: list[ClientId] = field(default_factory=list[ClientId])
    late: list[ClientId] = field(default_factory=list[ClientId])


def draw_failures(
    cohort: Sequence[ClientId], num_clients: int, dropout: float, lateness: float, seed: int, round: int
) -> Failures:
    """Draw for every client by itself whether it fails; who drops out by a small chance does so by every larger one."""
    if dropout == lateness == 0:
        return Failures()
    draws: list[float] = torch.rand(
        num_clients, generator=stream(seed, "failures", round), dtype=torch.float64
    ).tolist()
    dropped = [client for client in sorted(cohort) if draws[client] < dropout]
    late = [client for client in sorted(cohort) if dropout <= draws[client] < dropout + lateness]
    return Failures(dropped, late)


class SimulatedTransport:
    """Runs clients on this machine and keeps their memories for them."""

    def __init__(
        self,
        problem: FederatedProblem,
        algorithm: AnyAlgorithm,
        executor: Executor,
        files: TensorStore,
        policy: BatchPolicy,
        client_done: Callable[[int, ClientId], None] | None,
    ) -> None:
        self.memories: Mapping[ClientId, References] = {}
        self.models: Mapping[ClientId, References] = {}  # what clients are left with when their budget is spent
        self.ledgers: Mapping[ClientId, list[list[Any]]] = {}  # queries on clients' private records so far
        self.scored: Collection[ClientId] = ()  # on their test examples
        self.judges = False  # whether models are scored on validation data as well
        self.attempts = 1  # how often the next call's queries are charged
        self.failures = Failures()  # of the next round
        self.seconds = Timings()
        self._results: dict[ClientId, ClientResult] = {}  # of the last call
        self._client_done = client_done
        self._problem = problem
        self._upload = messages_of(algorithm).upload
        self._executor = executor
        self._files = files
        self._policy = policy
        # Workers of a process that was killed may write for a moment longer: never to a file that is ours.
        self._session = secrets.token_hex(4)

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Iterator[tuple[ClientId, Any]]:
        """Let clients personalise and train; who cannot contribute, or is late, has trained for itself alone."""
        dropped, late = set(self.failures.dropped), set(self.failures.late)
        received = [client for client in downloads if client not in dropped]
        for result in self._run(round, downloads, received, trains=True):
            if result.upload is not None and result.client not in late:
                yield result.client, messages.unpack(self._upload, self._files.load(result.upload))

    def personalise(self, round: int, downloads: Mapping[ClientId, Any]) -> dict[ClientId, Tensor]:
        """Let every client make the last federated update and no more; return their models."""
        models: dict[ClientId, Tensor] = {}
        for result in self._run(round, downloads, list(downloads), trains=False):
            models[result.client] = self._files.load_once(result.model)[""]
        return dict(sorted(models.items()))

    def taken(self) -> dict[ClientId, tuple[Tensor, Tensor]]:
        """Return from whom clients took how much, ids and weights, if the last call was a federated update alone."""
        found = {client: result.taken for client, result in sorted(self._results.items()) if result.taken}
        return {
            client: (torch.tensor(ids, dtype=torch.int64), torch.tensor(shares, dtype=torch.float64))
            for client, (ids, shares) in found.items()
        }

    def scores(self) -> tuple[dict[ClientId, Score], dict[ClientId, Score]]:
        """Return the last call's scores after the federated update and after local training."""
        results = sorted(self._results.items())
        after_update = {client: r.score_after_update for client, r in results if r.score_after_update}
        after_training = {client: r.score_after_training for client, r in results if r.score_after_training}
        return after_update, after_training

    def validation(self) -> dict[ClientId, Score]:
        """Return the last call's scores on validation data after the federated update."""
        results = sorted(self._results.items())
        return {client: result.score_on_validation for client, result in results if result.score_on_validation}

    def out_of_budget(self) -> list[ClientId]:
        """Return the clients whose budget did not suffice for the last call."""
        return sorted(client for client, result in self._results.items() if result.exceeds_budget)

    def rolled_back(self) -> dict[ClientId, str]:
        """Return whose training diverged in the last call, in words."""
        return {client: DIVERGED for client, result in sorted(self._results.items()) if result.is_rolled_back}

    def gradients(self) -> int:
        """Return how many examples were differentiated in the last call, each as often as it was."""
        return sum(result.gradients for result in self._results.values())

    def losses(self) -> dict[ClientId, list[float]]:
        """Return the losses of the models that clients evaluated in the last call, in sequence."""
        return {client: list(result.losses) for client, result in sorted(self._results.items()) if result.losses}

    def _run(
        self, round: int, downloads: Mapping[ClientId, Any], of: Collection[ClientId], trains: bool
    ) -> Iterator[ClientResult]:
        self._results = {}
        clients = self._problem.clients
        # Only rounds in which clients train end in a checkpoint: the last federated update ends the run.
        # The longest work first, so that no worker is left with it at the end, and like beside like.
        order = sorted(of, key=lambda client: (-len(clients[client].train), client))
        jobs_of = partial(self._jobs, round, downloads, trains)
        for done in self._executor.run_batches(self._policy.batches(round, order, jobs_of, self._session, trains)):
            self._files.checksums.update(done.checksums)
            self.seconds.add(done.seconds)
            for result in done.results:
                self._results[result.client] = result
                if self._client_done:
                    self._client_done(round, result.client)
                yield result
                if len(self._results) % TRIMMED_AFTER == 0:
                    trim_heap()
        self.memories = {**self.memories, **{client: result.memory for client, result in self._results.items()}}
        self.models = {**self.models, **{client: r.model for client, r in self._results.items() if r.model}}
        charged = {client: result.ledger for client, result in self._results.items() if result.ledger}
        self.ledgers = {**self.ledgers, **{client: self._with(client, ledger) for client, ledger in charged.items()}}

    def _with(self, client: ClientId, ledger: list[list[Any]]) -> list[list[Any]]:
        return to_rows(added(from_rows(self.ledgers.get(client, [])), from_rows(ledger), self.attempts))

    def _jobs(
        self, round: int, downloads: Mapping[ClientId, Any], trains: bool, of: Sequence[ClientId]
    ) -> list[ClientJob]:
        flat = {
            f"{client}:{field}": tensor for client in of for field, tensor in messages.pack(downloads[client]).items()
        }
        file = f"{purpose_of(trains)}-{round:05d}-downloads-{of[0]:05d}.safetensors"
        places = self._files.save(file, flat, for_checkpoint=trains)
        by_client: dict[ClientId, References] = {client: {} for client in of}
        for name, place in places.items():
            client, field = name.split(":", 1)
            by_client[int(client)][field] = place
        clients = self._problem.clients
        scored = set(self.scored)
        return [
            ClientJob(
                client=client,
                download=by_client[client],
                memory=self.memories.get(client),
                trains=trains and len(clients[client].train) > 0,
                is_scored=client in scored,
                ledger=self.ledgers.get(client, []),
                attempts=self.attempts,
                model=self.models.get(client),
                is_judged=self.judges,
                is_final=not trains,
            )
            for client in of
        ]
