"""The base class of federated methods: three functions on the server, three on a client, and declarations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, get_type_hints

import torch
from torch import Tensor, nn

from fedfomo.core.client import Client, ClientId, FederationInfo
from fedfomo.core.options import check_options
from fedfomo.core.sparse import SparseMatrix

State = TypeVar("State")
Download = TypeVar("Download")
Upload = TypeVar("Upload")
Memory = TypeVar("Memory")


@dataclass(frozen=True)
class Personalised(Generic[Memory]):
    """A client after the federated update: the model it would use now."""

    model: Tensor
    memory: Memory


@dataclass(frozen=True)
class Trained(Generic[Upload, Memory]):
    """A client after local training."""

    upload: Upload
    memory: Memory
    model: Tensor


@dataclass(frozen=True)
class EvaluatedModels:
    """The models of clients that a client evaluated in one round, for reports."""

    clients: Sequence[int]
    weights: Sequence[float]  # signed: how much each helps
    shares: Sequence[float]  # how much of each is in the client's model now
    is_update: bool  # whether any model, be it of one client or of several, changed the client's own


Records = Literal["validation", "training", "nothing"]
Steps = Literal["trainings", "gradients", "plain"]


class Algorithm(ABC, Generic[State, Download, Upload, Memory]):
    """A federated method. A subclass is a frozen dataclass whose fields are the method's options.

    In every round a client first turns its download into a model of its own (`personalise`), then trains and
    uploads (`train`, which receives the memory that `personalise` left). After the last round every client
    personalises once more. A client without training examples is never asked to train. No function changes its
    arguments. State, messages and memory are dataclasses that `fedfomo.core.messages` can carry; the return
    annotations of these functions say which.
    """

    name: ClassVar[str] = ""
    """The name in the registry, if it has one."""
    paper: ClassVar[str] = ""
    """Where it was published, if it was."""
    sends: ClassVar[str] = "1 model down, 1 up with its number of examples"
    """What is sent each way in a round, in words."""
    compute: ClassVar[str] = "as FedAvg"
    """How much a client computes in a round, compared with FedAvg, in words."""
    needs_groups: ClassVar[bool] = False
    """Whether it must know the clients' true groups, which only some scenarios have."""
    reads_records: ClassVar[bool] = False
    """Whether it reads single records past `Client.train` and the losses; with privacy it cannot run then."""
    evaluates_on: ClassVar[Records] = "nothing"
    """The records by which clients choose models; training records take `validation_noise` with privacy."""
    steps: ClassVar[Steps] = "trainings"
    """What it asks of a trainer: whole trainings, also single steps and gradients, or plain descent of its own."""
    uploads_examples: ClassVar[bool] = False
    """Whether clients upload examples as they are; no deployment runs such a method."""
    evaluated_first: ClassVar[tuple[str, ...]] = ()
    """Which models `personalise` evaluates first, for reports: "reference", "own"."""

    def __post_init__(self) -> None:
        """Refuse options that are not of their type, or out of bounds."""
        name = vars(type(self)).get("name")
        check_options(f"method '{name}'" if name else type(self).__name__, self)

    @property
    def steps_needed(self) -> Steps:
        """What this instance, with its options, needs of a trainer; the class attribute `steps` holds for defaults."""
        return self.steps

    # On the server.
    @abstractmethod
    def start_server(self, start: FederationInfo) -> State:
        """Return the server's state before the first round."""

    @abstractmethod
    def configure_client(self, state: State, to: ClientId, rng: torch.Generator) -> Download:
        """Choose what to send to one client."""

    @abstractmethod
    def aggregate(self, state: State, uploads: Mapping[ClientId, Upload]) -> State:
        """Return the state after a round, from the uploads that arrived and were not refused."""

    # On a client.
    def start_client(self, start: FederationInfo) -> Memory:
        """Return a client's memory before its first round: nothing, unless the method says otherwise."""
        return None  # type: ignore[return-value]  # a method with a memory overrides this

    @abstractmethod
    def personalise(self, client: Client, download: Download, memory: Memory) -> Personalised[Memory]:
        """Make the federated update: the model that this client would use now."""

    @abstractmethod
    def train(self, client: Client, download: Download, memory: Memory) -> Trained[Upload, Memory]:
        """Train locally after `personalise`, and prepare the upload."""

    # What only some methods do.
    def network(self, module: nn.Module) -> nn.Module:
        """Build the network that clients predict with, around a copy of the given one; `client.model` is then that."""
        return module

    @property
    def wraps_network(self) -> bool:
        """Whether clients predict with another network than the one that was given."""
        return type(self).network is not Algorithm.network

    def keeps(self, module: nn.Module) -> Collection[str]:
        """Return the names of the parameters and buffers that every client keeps for itself: they are not in θ."""
        return ()

    def validate(self, state: State, upload: Upload) -> str | None:
        """Say what makes an upload unfit for use, beyond what its annotations say, or return None."""
        return None

    def flag_uploads(
        self, state: State, downloads: Mapping[ClientId, Download], uploads: Mapping[ClientId, Upload]
    ) -> dict[ClientId, str]:
        """Name clients whose uploads are odd, though fit for use, and say why; `state` is that before the round."""
        return {}

    def forget_clients(self, state: State, members: Collection[ClientId]) -> State:
        """Return a state that neither holds nor awaits anything of others than members, as far as that is possible."""
        return state

    def affinity(self, state: State) -> SparseMatrix | None:
        """Return who values whom, receiver × giver, if the server knows."""
        return None

    def mixing_history(self, state: State) -> SparseMatrix | None:
        """Return who has learnt from whom and how much, receiver × giver, if the server knows."""
        return None

    def mixing_weights(self, memory: Memory) -> tuple[Tensor, Tensor] | None:
        """Return from whom a client took how much in its last federated update, ids and weights, if it remembers."""
        return None

    def exploration(self, round: int) -> float | None:
        """Return the chance that a client is sent a random model instead of one it is known to value, for reports."""
        return None

    def evaluated_models(self, upload: Mapping[str, Any]) -> EvaluatedModels | None:
        """Return the models that a client evaluated, from the numbers of its upload in the log, for reports."""
        return None

    def mixing_matrix(self, state: State, rows: Mapping[ClientId, tuple[Tensor, Tensor]]) -> SparseMatrix | None:
        """Return who has learnt from whom: what the server knows, and from whom clients took how much since."""
        history = self.mixing_history(state)
        return None if history is None else history.add_rows(rows)


AnyAlgorithm = Algorithm[Any, Any, Any, Any]


@dataclass(frozen=True)
class Messages:
    """The types that an algorithm declares for what it keeps and sends."""

    state: Any
    download: Any
    upload: Any
    memory: Any


def messages_of(algorithm: AnyAlgorithm) -> Messages:
    """Read an algorithm's message types off its return annotations."""
    return _messages_of(type(algorithm))


@cache
def _messages_of(algorithm: type[AnyAlgorithm]) -> Messages:
    def returns(method: Callable[..., Any]) -> Any:
        return get_type_hints(method, include_extras=True)["return"]

    upload, memory = get_args(returns(algorithm.train))
    return Messages(returns(algorithm.start_server), returns(algorithm.configure_client), upload, memory)
