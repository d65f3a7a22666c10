"""The round: who does what on which side, and nothing about how messages travel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

import torch

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, State, messages_of
from fedfomo.core.client import ClientId
from fedfomo.core.rng import stream


class Transport(Protocol):
    """Carries downloads to clients, lets them work, and returns the uploads of those that answered."""

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Iterable[tuple[ClientId, Any]]:
        """Yield clients and their uploads as they arrive; a client that failed is simply absent."""
        ...


@dataclass(frozen=True)
class CommunicationCost:
    """What moved between server and clients."""

    models_down: float = 0.0
    models_up: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0

    def __add__(self, other: CommunicationCost) -> CommunicationCost:
        return CommunicationCost(
            self.models_down + other.models_down,
            self.models_up + other.models_up,
            self.bytes_down + other.bytes_down,
            self.bytes_up + other.bytes_up,
        )


@dataclass(frozen=True)
class RoundResult(Generic[State]):
    """What a round leaves behind."""

    state: State
    uploads: Mapping[ClientId, Any]
    refused: Mapping[ClientId, str]
    traffic: CommunicationCost
    suspected: Mapping[ClientId, str] = field(default_factory=dict[ClientId, str])


@dataclass(frozen=True)
class Federation:
    """The constants of a run that the server side needs."""

    algorithm: AnyAlgorithm
    num_clients: int
    model_size: int
    seed: int


class Downloads(Mapping[ClientId, Any]):
    """Every client's download, chosen when it is first read: some clients work while those of others are chosen."""

    def __init__(self, configure: Callable[[ClientId], Any], to: Iterable[ClientId]) -> None:
        self._configure = configure
        self._chosen: dict[ClientId, Any] = dict.fromkeys(to, _NOT_YET)

    def __getitem__(self, client: ClientId) -> Any:
        """Return a client's download."""
        if self._chosen[client] is _NOT_YET:
            self._chosen[client] = self._configure(client)
        return self._chosen[client]

    def __contains__(self, client: object) -> bool:
        """Tell whether a client has a download, without choosing it."""
        return client in self._chosen

    def __iter__(self) -> Iterator[ClientId]:
        """List the clients in the sequence given."""
        return iter(self._chosen)

    def __len__(self) -> int:
        """Count the clients."""
        return len(self._chosen)


_NOT_YET = object()


def configure_clients(federation: Federation, state: Any, round: int, to: Sequence[ClientId]) -> Downloads:
    """Choose every client's download; each draws from a stream of its own, so the sequence makes no difference."""

    def configure(client: ClientId) -> Any:
        rng = stream(federation.seed, "dispatch", round, client)
        return federation.algorithm.configure_client(state, client, rng)

    return Downloads(configure, to)


def run_round(
    federation: Federation,
    state: State,
    round: int,
    cohort: Sequence[ClientId],
    exchange: Transport,
    on_upload: Callable[[ClientId, Any, str | None], None] | None = None,
) -> RoundResult[State]:
    """Run one round: configure clients, exchange messages, validate uploads, aggregate.

    `on_upload` is called for every upload as it arrives, with the reason why it is refused, or None.
    """
    downloads = configure_clients(federation, state, round, cohort)
    arrived: dict[ClientId, Any] = {}
    refused: dict[ClientId, str] = {}
    validate = upload_check(federation, state)
    for client, upload in exchange(round, downloads):
        arrived[client] = upload
        fault = validate(upload) if client in downloads else "nobody asked for it"
        if fault is not None:
            refused[client] = fault
        if on_upload is not None:
            on_upload(client, upload, fault)
    uploads = {client: arrived[client] for client in sorted(arrived) if client not in refused}
    traffic = traffic_of(federation.model_size, downloads, arrived)
    refused = dict(sorted(refused.items()))
    algorithm = federation.algorithm
    suspected = algorithm.flag_uploads(state, downloads, uploads)
    return RoundResult(algorithm.aggregate(state, uploads), uploads, refused, traffic, suspected)


def upload_check(federation: Federation, state: Any) -> Callable[[Any], str | None]:
    """Return what says why an upload is unfit for use in the round after a state, or None if it is not."""
    algorithm = federation.algorithm
    schema = messages_of(algorithm).upload

    def validate(upload: Any) -> str | None:
        fault = messages.validate(schema, upload, federation.model_size, federation.num_clients)
        return algorithm.validate(state, upload) if fault is None else fault

    return validate


def traffic_of(
    model_size: int, downloads: Mapping[ClientId, Any], uploads: Mapping[ClientId, Any]
) -> CommunicationCost:
    """Count models and bytes in both directions."""
    down = [messages.message_size(download) for download in downloads.values()]
    up = [messages.message_size(upload) for upload in uploads.values()]
    return CommunicationCost(
        sum(coordinates for coordinates, _ in down) / model_size,
        sum(coordinates for coordinates, _ in up) / model_size,
        sum(size for _, size in down),
        sum(size for _, size in up),
    )


def sample_clients(num_clients: int, participation: float, seed: int, round: int, least: int = 1) -> list[ClientId]:
    """Draw a round's clients afresh, without replacement; more of them, if at least so many are wanted."""
    order = torch.randperm(num_clients, generator=stream(seed, "cohort", round))
    return sorted(order[: max(least, cohort_size(num_clients, participation))].tolist())


def cohort_size(num_clients: int, participation: float) -> int:
    """Return ⌊participation · K⌋, at least one."""
    return max(1, int(participation * num_clients + 1e-9))  # 0.29 · 100 is 28.999…
