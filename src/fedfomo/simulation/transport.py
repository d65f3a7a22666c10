"""The simulator's exchange: downloads become orders, outcomes become uploads."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import ClientId
from fedfomo.core.data import can_contribute
from fedfomo.core.model import Score
from fedfomo.engine.tensor_store import References, TensorStore
from fedfomo.privacy.accountant import added, from_rows, to_rows
from fedfomo.simulation.client_batching import Timings
from fedfomo.simulation.dropout import Failures
from fedfomo.simulation.executors import Executor
from fedfomo.simulation.scheduling import BatchPolicy, RoundSchedule
from fedfomo.simulation.worker import ClientJob, ClientResult, FederatedProblem

DIVERGED = "its training diverged, and is forgotten"


class SimulatedTransport:
    """Runs clients on this machine and keeps their memories for them."""

    def __init__(
        self,
        problem: FederatedProblem,
        algorithm: AnyAlgorithm,
        crew: Executor,
        files: TensorStore,
        grouping: BatchPolicy,
        client_done: Callable[[int, ClientId], None] | None,
    ) -> None:
        self.memories: Mapping[ClientId, References] = {}
        self.models: Mapping[ClientId, References] = {}  # what clients are left with when their budget is spent
        self.bills: Mapping[ClientId, list[list[Any]]] = {}  # what clients have paid for looks at private records
        self.scored: Collection[ClientId] = ()  # on their test examples
        self.attempts = 1  # how often the next call's looks are paid for
        self.failures = Failures()  # of the next round
        self.seconds = Timings()
        self._outcomes: dict[ClientId, ClientResult] = {}  # of the last call
        self._client_done = client_done
        self._problem = problem
        self._upload = messages_of(algorithm).upload
        self._memory = messages_of(algorithm).memory
        self._crew = crew
        self._files = files
        self._grouping = grouping
        # Workers of a process that was killed may write for a moment longer: never to a file that is ours.
        self._sitting = secrets.token_hex(4)

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Iterator[tuple[ClientId, Any]]:
        """Let clients personalise and train; who cannot contribute, or is late, has trained for itself alone."""
        dropped, late = set(self.failures.dropped), set(self.failures.late)
        received = {client: download for client, download in downloads.items() if client not in dropped}
        for outcome in self._carry_out(round, received, trains=True):
            is_heard = outcome.client not in late and can_contribute(self._problem.clients[outcome.client])
            if outcome.upload is None or not is_heard:
                continue
            yield outcome.client, messages.unpack(self._upload, self._files.load(outcome.upload))

    def personalise(self, round: int, downloads: Mapping[ClientId, Any]) -> dict[ClientId, Tensor]:
        """Let every client make the federated update and no more; return their models."""
        models: dict[ClientId, Tensor] = {}
        for outcome in self._carry_out(round, downloads, trains=False):
            models[outcome.client] = self._files.load(outcome.model)[""]
        return dict(sorted(models.items()))

    def memory_of(self, client: ClientId) -> Any:
        """Read a client's memory as its last outcome left it."""
        return messages.unpack(self._memory, self._files.load(self.memories[client]))

    def scores(self) -> tuple[dict[ClientId, Score], dict[ClientId, Score]]:
        """Return the last call's scores after the federated update and after local training."""
        outcomes = sorted(self._outcomes.items())
        after_update = {client: o.score_after_update for client, o in outcomes if o.score_after_update}
        after_training = {client: o.score_after_training for client, o in outcomes if o.score_after_training}
        return after_update, after_training

    def spent(self) -> list[ClientId]:
        """Return the clients whose budget did not suffice for the last call."""
        return sorted(client for client, outcome in self._outcomes.items() if outcome.is_spent)

    def rolled_back(self) -> dict[ClientId, str]:
        """Return whose training diverged in the last call, in words."""
        return {client: DIVERGED for client, outcome in sorted(self._outcomes.items()) if outcome.is_rolled_back}

    def gradients(self) -> int:
        """Return how many examples were differentiated in the last call, each as often as it was."""
        return sum(outcome.gradients for outcome in self._outcomes.values())

    def losses(self) -> dict[ClientId, list[float]]:
        """Return what clients were told of the models that they judged in the last call, in the order of judging."""
        return {client: list(outcome.losses) for client, outcome in sorted(self._outcomes.items()) if outcome.losses}

    def _carry_out(self, round: int, downloads: Mapping[ClientId, Any], trains: bool) -> Iterator[ClientResult]:
        self._outcomes = {}
        orders = RoundSchedule(round, self._parts(round, downloads, trains), self._grouping, self._sitting)
        for report in self._crew.run_batches(orders):
            self._files.checksums.update(report.checksums)
            self.seconds.add(report.seconds)
            for outcome in filter(orders.is_whole, report.outcomes):
                self._outcomes[outcome.client] = outcome
                if self._client_done:
                    self._client_done(round, outcome.client)
                yield outcome
        self.memories = {**self.memories, **{client: outcome.memory for client, outcome in self._outcomes.items()}}
        self.models = {**self.models, **{client: o.model for client, o in self._outcomes.items() if o.model}}
        paid = {client: outcome.bill for client, outcome in self._outcomes.items() if outcome.bill}
        self.bills = {**self.bills, **{client: self._with(client, bill) for client, bill in paid.items()}}

    def _with(self, client: ClientId, bill: list[list[Any]]) -> list[list[Any]]:
        return to_rows(added(from_rows(self.bills.get(client, [])), from_rows(bill), self.attempts))

    def _parts(self, round: int, downloads: Mapping[ClientId, Any], trains: bool) -> list[ClientJob]:
        flat = {
            f"{client}:{field}": tensor
            for client, download in downloads.items()
            for field, tensor in messages.pack(download).items()
        }
        places = self._files.save(f"round-{round:05d}-downloads.safetensors", flat)
        by_client: dict[ClientId, References] = {client: {} for client in downloads}
        for name, place in places.items():
            client, field = name.split(":", 1)
            by_client[int(client)][field] = place
        clients = self._problem.clients
        # The longest work first, so that no worker is left with it at the end, and like beside like.
        order = sorted(downloads, key=lambda client: (-len(clients[client].train), client))
        scored = set(self.scored)
        return [
            ClientJob(
                client=client,
                download=by_client[client],
                memory=self.memories.get(client),
                trains=trains and len(clients[client].train) > 0,
                is_scored=client in scored,
                bill=self.bills.get(client, []),
                attempts=self.attempts,
                model=self.models.get(client),
            )
            for client in order
        ]
