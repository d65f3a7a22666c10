"""What clients do when an order reaches them, in whichever process that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.augmentation import require_images
from fedfomo.core.client import Client, ClientId, ComputeCost, FederationInfo
from fedfomo.core.data import ClientData
from fedfomo.core.local_training import LocalTrainer, Sgd
from fedfomo.core.model import Model, Score
from fedfomo.core.round import train_or_rollback
from fedfomo.core.vectorised import Stack
from fedfomo.engine.tensor_store import References, TensorStore
from fedfomo.errors import InputError
from fedfomo.privacy.accountant import from_rows, to_rows
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.private_data import BudgetError, sealed
from fedfomo.simulation.client_batching import BatchedCompute, ClientCompute, SequentialCompute, Timings

if TYPE_CHECKING:
    from fedfomo.privacy.engine import PrivacyEngine


@dataclass(frozen=True)
class Update:
    """What is told of a federated update that was made in an earlier order."""

    score: Score | None
    gradients: int
    losses: Sequence[float]


@dataclass(frozen=True)
class ClientJob:
    """One client's part of an order; tensors are named, not carried."""

    client: ClientId
    download: References
    memory: References | None  # None: the client has none yet
    trains: bool  # False: personalise only
    is_scored: bool  # on the client's test examples
    bill: list[list[Any]]  # what the client has paid for looks at its private records so far
    attempts: int  # how often it has to pay for this order
    model: References | None  # what a client without budget is left with; None: it has none yet
    update: Update | None = None  # None: the client has to personalise; if not, its memory is from after that
    before: References | None = None  # its memory from before that

    def places(self) -> list[str]:
        """Return where everything lies that this part may read."""
        return [
            place for named in (self.download, self.memory, self.model, self.before) for place in (named or {}).values()
        ]


@dataclass(frozen=True)
class Batch:
    """The work of some clients in one round."""

    round: int
    parts: Sequence[ClientJob]
    file: str  # for the results


@dataclass(frozen=True)
class ClientResult:
    """What came of one client's part."""

    client: ClientId
    model: References  # what the client would use now
    memory: References
    upload: References | None
    score_after_update: Score | None
    score_after_training: Score | None
    gradients: int  # examples × passes that were differentiated
    bill: list[list[Any]]  # what the client paid in this order
    is_spent: bool  # its budget did not suffice: it did nothing, and nothing of it leaves
    is_rolled_back: bool  # its training diverged: its memory is that from before
    losses: Sequence[float]  # of the models that the client judged, as its judge told them


@dataclass(frozen=True)
class BatchResult:
    """What came of an order."""

    outcomes: Sequence[ClientResult]
    checksums: Mapping[str, str]
    seconds: Timings


@dataclass(frozen=True)
class FederatedProblem:
    """Everything that is given before a method is chosen."""

    model: Model
    initial: Tensor
    clients: Sequence[ClientData]
    trainer: LocalTrainer
    seed: int
    groups: tuple[int, ...] | None = None  # each client's true distribution, where a scenario knows it
    targets: tuple[int, ...] | None = None  # likewise, of the data that it judges by and is judged on
    privacy: Privacy = field(default_factory=Privacy)

    def __post_init__(self) -> None:
        if isinstance(self.trainer, Sgd) and self.trainer.augment:
            for data in self.clients:
                require_images(data.train.inputs)

    def guard(self, rounds: int) -> PrivacyEngine | None:
        """Return what stands before the clients' records in a run of so many rounds; None: nothing."""
        if not self.privacy.is_on:
            return None
        from fedfomo.privacy.engine import PrivacyEngine  # takes as long to import as torch, which few runs need

        if not isinstance(self.trainer, Sgd):
            raise InputError("privacy adds noise to Sgd; this trainer would have to add its own")
        return PrivacyEngine.of(self.privacy, self.trainer, [len(data.train) for data in self.clients], rounds)

    def start(self, rounds: int) -> FederationInfo:
        """Return what server and clients know before the first of so many rounds."""
        return FederationInfo(self.initial, self.model.layout, len(self.clients), rounds, self.groups, self.targets)

    def model_of(self, algorithm: AnyAlgorithm) -> Model:
        """Return what clients of an algorithm start to predict with: this model, or one that is built around it."""
        self.model.load(self.initial)  # it may hold what another run computed last
        return self.model.rebuilt(algorithm.network) if algorithm.wraps_network else self.model


class ClientRunner:
    """All clients' halves of a method."""

    def __init__(
        self,
        problem: FederatedProblem,
        start: FederationInfo,
        algorithm: AnyAlgorithm,
        files: TensorStore,
        is_stacked: bool = False,
    ) -> None:
        self._problem = problem
        self._start = start
        self._algorithm = algorithm
        self._messages = messages_of(algorithm)
        self._files = files
        self._round = -1
        self._model = problem.model_of(algorithm)
        self._initial = self._model.read()
        self._guard = problem.guard(start.rounds)
        stack = stack_of(problem, self._model) if is_stacked else None
        trainer = problem.trainer
        if stack is not None and isinstance(trainer, Sgd):
            self._hands: ClientCompute = BatchedCompute(self._model, trainer, stack)
        elif self._guard is not None and isinstance(trainer, Sgd):
            self._guard.check(self._model, problem.clients)
            self._hands = SequentialCompute(self._model, self._guard.trainer(trainer), self._guard.judge())
        else:
            self._hands = SequentialCompute(self._model, trainer)

    def run_batch(self, order: Batch) -> BatchResult:
        """Let every client personalise, train and be scored as asked, and leave the results in one file."""
        hands = self._hands
        hands.seconds = Timings()
        if order.round != self._round:
            # Orders of one round read the same files; those of the next have others.
            self._files.forget()
            self._round = order.round
        with hands.seconds.counted("all"):
            played = hands.play([partial(self._play_named, order.round, part) for part in order.parts])
            outcomes = self._keep(order, played)
        checksums, self._files.checksums = self._files.checksums, {}
        return BatchResult(outcomes, checksums, hands.seconds)

    def _play_named(self, round: int, part: ClientJob) -> _ClientRun:
        """Say whose fault it was, whatever a client's data, model or method raise."""
        try:
            return self._play(round, part)
        except Exception as error:
            error.add_note(f"client {part.client} failed in round {round}")
            raise

    def _play(self, round: int, part: ClientJob) -> _ClientRun:
        problem, hands, guard = self._problem, self._hands, self._guard
        data, seed = problem.clients[part.client], problem.seed
        if guard is None:
            effort = ComputeCost(part.update.gradients, [*part.update.losses]) if part.update else ComputeCost()
            client = Client(part.client, data, self._start, self._model, hands, round, seed, hands, effort)
            return self._run_client(client, part)
        seed, meter = guard.seed(seed), guard.meter(seed, round, part.client, from_rows(part.bill), part.attempts)
        client = Client(part.client, sealed(data, meter), self._start, self._model, hands, round, seed, hands)
        try:
            played = self._run_client(client, part)
        except BudgetError:
            played = self._skip_client(part)
        return replace(played, bill=to_rows(meter.bill))

    def _run_client(self, client: Client, part: ClientJob) -> _ClientRun:
        algorithm = self._algorithm
        download = messages.unpack(self._messages.download, self._files.load(part.download))
        if part.update is None:
            before = part.memory
            personal = algorithm.personalise(client, download, self._memory(part.memory))
            memory, after_update = personal.memory, self._score(part, personal.model)
            if not part.trains:
                return _ClientRun({"model": personal.model, "memory": memory}, after_update, None, client.effort)
        else:
            before = part.before
            memory, after_update = self._memory(part.memory), part.update.score
        trained, is_rolled_back = train_or_rollback(algorithm, client, download, memory, lambda: self._memory(before))
        # The model lives on in the memory, if anywhere: only the last, trainless pass needs it for itself, and a
        # client whose budget may end at any time.
        results = {"memory": trained.memory, "upload": trained.upload}
        if self._guard is not None and not is_rolled_back:
            results["model"] = trained.model
        score = self._score(part, trained.model)
        return _ClientRun(results, after_update, score, client.effort, is_rolled_back=is_rolled_back)

    def _skip_client(self, part: ClientJob) -> _ClientRun:
        """Leave a client that cannot pay as it is."""
        model = self._initial if part.model is None else self._files.load(part.model)[""]
        score = self._score(part, model)
        return _ClientRun(
            {"model": model, "memory": self._memory(part.memory)}, score, None, ComputeCost(), is_spent=True
        )

    def _memory(self, kept: References | None) -> Any:
        if kept is None:
            return self._algorithm.start_client(self._start)
        return messages.unpack(self._messages.memory, self._files.load(kept))

    def _score(self, part: ClientJob, model: Tensor) -> Score | None:
        if not part.is_scored:
            return None
        return self._hands.scores([(model, self._problem.clients[part.client].test)])[0]

    def _keep(self, order: Batch, played: Sequence[_ClientRun]) -> list[ClientResult]:
        flat: messages.Flat = {}
        for part, own in zip(order.parts, played, strict=True):
            for name, value in own.results.items():
                fields = {"": value} if isinstance(value, Tensor) else messages.pack(value)
                flat |= {f"{part.client}:{name}:{field}": tensor for field, tensor in fields.items()}
        places: dict[str, References] = {}
        for place, reference in self._files.save(order.file, flat).items():
            owner, _, field = place.rpartition(":")
            places.setdefault(owner, {})[field] = reference
        return [
            ClientResult(
                client=part.client,
                model=places.get(f"{part.client}:model", {}),
                memory=places.get(f"{part.client}:memory", {}),
                upload=places.get(f"{part.client}:upload", {}) if part.trains and not own.is_spent else None,
                score_after_update=own.score_after_update,
                score_after_training=own.score_after_training,
                gradients=own.effort.gradients,
                losses=own.effort.losses,
                bill=own.bill,
                is_spent=own.is_spent,
                is_rolled_back=own.is_rolled_back,
            )
            for part, own in zip(order.parts, played, strict=True)
        ]


@dataclass(frozen=True)
class _ClientRun:
    """A client's part, done but not yet written down."""

    results: Mapping[str, Any]
    score_after_update: Score | None
    score_after_training: Score | None
    effort: ComputeCost
    bill: list[list[Any]] = field(default_factory=list[list[Any]])
    is_spent: bool = False
    is_rolled_back: bool = False


def stack_of(problem: FederatedProblem, model: Model) -> Stack | None:
    """Return a stack of the clients' models, if that is right and worth while."""
    if type(problem.trainer) is not Sgd or problem.trainer.augment or problem.privacy.is_on:
        return None
    examples = max((data.train for data in problem.clients), key=len)
    return Stack.of(model, examples)
