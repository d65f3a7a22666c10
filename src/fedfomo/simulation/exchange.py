"""The simulator's exchange: downloads become orders, outcomes become uploads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from torch import Tensor

from fedfomo import wire
from fedfomo.federation import AnyAlgorithm, ClientId, messages_of
from fedfomo.model import Score
from fedfomo.simulation.client_side import Order, Outcome, Problem, contributes
from fedfomo.simulation.crew import Crew
from fedfomo.simulation.tensors import References, TensorFiles


class SimulatedExchange:
    """Runs clients on this machine and keeps their memories for them."""

    def __init__(
        self,
        problem: Problem,
        algorithm: AnyAlgorithm,
        crew: Crew,
        files: TensorFiles,
        client_done: Callable[[int, ClientId], None] | None,
    ) -> None:
        self.memories: Mapping[ClientId, References] = {}
        self.scored: Collection[ClientId] = ()  # on their test examples
        self._outcomes: dict[ClientId, Outcome] = {}  # of the last call
        self._client_done = client_done
        self._problem = problem
        self._upload = messages_of(algorithm).upload
        self._memory = messages_of(algorithm).memory
        self._crew = crew
        self._files = files

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Mapping[ClientId, Any]:
        """Let every client personalise and train; who cannot contribute keeps what it trained to itself."""
        self._carry_out(round, downloads, trains=True)
        return {
            client: wire.unpack(self._upload, self._files.load(outcome.upload))
            for client, outcome in sorted(self._outcomes.items())
            if outcome.upload is not None and contributes(self._problem.clients[client])
        }

    def personalise(self, round: int, downloads: Mapping[ClientId, Any]) -> dict[ClientId, Tensor]:
        """Let every client make the federated update and no more; return their models."""
        self._carry_out(round, downloads, trains=False)
        models: dict[ClientId, Tensor] = {}
        for client, outcome in sorted(self._outcomes.items()):
            models[client] = self._files.load(outcome.model)[""]
        return models

    def memory_of(self, client: ClientId) -> Any:
        """Read a client's memory as its last outcome left it."""
        return wire.unpack(self._memory, self._files.load(self.memories[client]))

    def scores(self) -> tuple[dict[ClientId, Score], dict[ClientId, Score]]:
        """Return the last call's scores after the federated update and after local training."""
        outcomes = sorted(self._outcomes.items())
        after_update = {client: o.score_after_update for client, o in outcomes if o.score_after_update}
        after_training = {client: o.score_after_training for client, o in outcomes if o.score_after_training}
        return after_update, after_training

    def _carry_out(self, round: int, downloads: Mapping[ClientId, Any], trains: bool) -> None:
        self._outcomes = {}
        for outcome in self._crew.carry_out(self._orders(round, downloads, trains)):
            self._outcomes[outcome.client] = outcome
            self._files.checksums.update(outcome.checksums)
            if self._client_done:
                self._client_done(round, outcome.client)
        self.memories = {**self.memories, **{client: outcome.memory for client, outcome in self._outcomes.items()}}

    def _orders(self, round: int, downloads: Mapping[ClientId, Any], trains: bool) -> list[Order]:
        flat = {
            f"{client}:{field}": tensor
            for client, download in downloads.items()
            for field, tensor in wire.pack(download).items()
        }
        places = self._files.save(f"round-{round:05d}-downloads.safetensors", flat)
        by_client: dict[ClientId, References] = {client: {} for client in downloads}
        for name, place in places.items():
            client, field = name.split(":", 1)
            by_client[int(client)][field] = place
        orders = [
            Order(
                round=round,
                client=client,
                download=by_client[client],
                memory=self.memories.get(client),
                trains=trains and len(self._problem.clients[client].train) > 0,
                is_scored=client in self.scored,
            )
            for client in downloads
        ]
        # The longest work first, so that no worker is left with it at the end.
        return sorted(orders, key=lambda order: -len(self._problem.clients[order.client].train))
