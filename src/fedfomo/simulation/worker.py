"""Runs batches of clients, in whichever process that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import Client, ComputeCost
from fedfomo.core.client_round import KEPT, ClientOutcome, load_memory, pack_memory, run_client_round, split_memory
from fedfomo.core.local_training import LocalState, Sgd
from fedfomo.core.model import Model, Score
from fedfomo.core.vectorised import Stack
from fedfomo.engine.tensor_store import References, TensorStore
from fedfomo.privacy.accountant import from_rows, to_rows
from fedfomo.privacy.private_data import make_private
from fedfomo.simulation.client_batching import BatchedCompute, ClientCompute, SequentialCompute, Timings
from fedfomo.simulation.problem import FederatedProblem, private_part
from fedfomo.simulation.scheduling import Batch, BatchResult, ClientJob, ClientResult

if TYPE_CHECKING:
    from fedfomo.privacy.engine import PrivacyEngine


@dataclass(frozen=True)
class RunSetup:
    """What is found out once per run, and is the same in all workers."""

    problem: FederatedProblem
    algorithm: AnyAlgorithm
    rounds: int
    model: Model  # of the algorithm's clients
    privacy: PrivacyEngine | None
    is_stacked: bool

    @classmethod
    def of(cls, problem: FederatedProblem, algorithm: AnyAlgorithm, rounds: int, may_stack: bool) -> RunSetup:
        """Build model and privacy, refuse what no noise would make private, and try whether models can be stacked."""
        problem.check(algorithm)
        problem = problem.split(algorithm)
        model, privacy = problem.model_of(algorithm), problem.privacy_engine(rounds)
        if privacy is not None:
            privacy.check(model, problem.clients)
        is_stacked = may_stack and problem.stack_of(model) is not None
        return cls(problem, algorithm, rounds, model, privacy, is_stacked)


class ClientRunner:
    """Runs any client of a problem."""

    def __init__(self, setup: RunSetup, files: TensorStore) -> None:
        problem, trainer = setup.problem, setup.problem.trainer
        self._problem = problem
        self._start = problem.start(setup.rounds)
        self._algorithm = setup.algorithm
        self._download = messages_of(setup.algorithm).download
        self._files = files
        self._round = -1
        self._model = setup.model
        self._initial = self._model.export(self._model.read(), None)
        self._privacy = setup.privacy
        self._compute: ClientCompute = SequentialCompute(self._model, trainer)
        if setup.is_stacked and isinstance(trainer, Sgd):
            self._compute = BatchedCompute(self._model, trainer, Stack(self._model))
        elif setup.privacy is not None:
            privacy = setup.privacy
            privacy.check(self._model, problem.clients)  # in a process that has not inherited what that found out
            self._compute = SequentialCompute(self._model, privacy.trainer(private_part(trainer)), privacy.evaluator())

    def run_batch(self, batch: Batch) -> BatchResult:
        """Let every client personalise, train and be scored as asked, and leave the results in one file."""
        compute = self._compute
        compute.seconds = Timings()
        if batch.round != self._round:
            # Batches of one round read the same files; those of the next have others.
            self._files.forget()
            self._round = batch.round
        with compute.seconds.counted("all"):
            done = compute.run([partial(self._run_named, batch.round, job) for job in batch.jobs])
            results = self._save(batch, done)
        checksums, self._files.checksums = self._files.checksums, {}
        return BatchResult(results, checksums, compute.seconds)

    def _run_named(self, round: int, job: ClientJob) -> _FinishedJob:
        """Add which client it was to whatever its data, model or method raise."""
        try:
            return self._run(round, job)
        except Exception as error:
            error.add_note(f"client {job.client} failed in round {round}")
            raise

    def _run(self, round: int, job: ClientJob) -> _FinishedJob:
        problem, compute, ledger = self._problem, self._compute, list[list[Any]]()
        data, seed = problem.clients[job.client], problem.seed
        place = job.client, data, self._start, self._model, compute, round, seed, compute
        client = Client(*place, is_final=job.is_final)
        if self._privacy is None:
            outcome = self._run_client(client, job)
        else:
            seed = self._privacy.seed(seed)
            tracker = self._privacy.tracker(seed, round, job.client, from_rows(job.ledger), job.attempts)
            client = replace(client, data=make_private(data, tracker), seed=seed)
            outcome = self._run_client(client, job)
            ledger = to_rows(tracker.ledger)
        if outcome.exceeds_budget:
            return self._left_as_it_was(job, outcome, ledger)
        tensors: dict[str, Any] = {"memory": pack_memory(outcome)}
        if not job.trains:
            tensors["model"] = self._exported(outcome.personalised, outcome.kept_values)
        elif self._privacy is not None and outcome.trained is not None:
            # Its budget may end at any time. Elsewhere the model lives on in the memory, if anywhere.
            tensors["model"] = self._exported(outcome.trained, outcome.local.get(KEPT))
        if outcome.has_upload:
            tensors["upload"] = outcome.upload
        return _FinishedJob(outcome, tensors, client.effort, ledger)

    def _run_client(self, client: Client, job: ClientJob) -> ClientOutcome:
        download = messages.unpack(self._download, self._files.load(job.download))
        packed = None if job.memory is None else self._files.load(job.memory)
        memory = load_memory(self._algorithm, self._start, packed)
        client = replace(client, local=LocalState(split_memory(packed or {})[1]))
        judged: list[Score] = []

        def score(model: Tensor) -> Score | None:
            if job.is_judged and not judged:  # the first is the model after the federated update
                judged.extend(self._compute.scores([(model, self._problem.clients[job.client].validation)]))
            return self._score(job, model)

        outcome = run_client_round(self._algorithm, client, download, memory, job.trains, score)
        return replace(outcome, score_on_validation=next(iter(judged), None))

    def _left_as_it_was(self, job: ClientJob, outcome: ClientOutcome, ledger: list[list[Any]]) -> _FinishedJob:
        """Give a client that exceeds its budget the model that it had."""
        model = self._initial if job.model is None else self._files.load(job.model)[""]
        theta, self._model.kept_values = self._model.take_apart(model)
        outcome = replace(outcome, score_after_update=self._score(job, theta))
        return _FinishedJob(outcome, {"memory": pack_memory(outcome), "model": model}, ComputeCost(), ledger)

    def _taken(self, outcome: ClientOutcome) -> tuple[list[int], list[float]] | None:
        # Whoever could not pay for the update took nothing, and remembers what it took before.
        found = None if outcome.exceeds_budget else self._algorithm.mixing_weights(outcome.memory)
        return None if found is None else (found[0].tolist(), found[1].tolist())

    def _exported(self, theta: Tensor | None, kept: Tensor | None) -> Tensor | None:
        return None if theta is None else self._model.export(theta, kept)

    def _score(self, job: ClientJob, model: Tensor) -> Score | None:
        if not job.is_scored:
            return None
        return self._compute.scores([(model, self._problem.clients[job.client].test)])[0]

    def _save(self, batch: Batch, done: Sequence[_FinishedJob]) -> list[ClientResult]:
        flat: messages.Flat = {}
        for job, own in zip(batch.jobs, done, strict=True):
            for name, value in own.tensors.items():
                if name == "memory" and not batch.for_checkpoint:
                    continue
                fields = (
                    {"": value} if isinstance(value, Tensor) else value if name == "memory" else messages.pack(value)
                )
                flat |= {f"{job.client}:{name}:{field}": tensor for field, tensor in fields.items()}
        places: dict[str, References] = {}
        for place, reference in self._files.save(batch.file, flat, batch.for_checkpoint).items():
            owner, _, field = place.rpartition(":")
            places.setdefault(owner, {})[field] = reference
        return [
            ClientResult(
                client=job.client,
                model=places.get(f"{job.client}:model", {}),
                memory=places.get(f"{job.client}:memory", {}),
                upload=places.get(f"{job.client}:upload", {}) if own.outcome.has_upload else None,
                score_after_update=own.outcome.score_after_update,
                score_after_training=own.outcome.score_after_training,
                gradients=own.cost.gradients,
                losses=own.cost.losses,
                ledger=own.ledger,
                exceeds_budget=own.outcome.exceeds_budget,
                is_rolled_back=own.outcome.is_rolled_back,
                score_on_validation=own.outcome.score_on_validation,
                taken=None if job.trains else self._taken(own.outcome),
            )
            for job, own in zip(batch.jobs, done, strict=True)
        ]


@dataclass(frozen=True)
class _FinishedJob:
    """A client's job, done but not yet stored."""

    outcome: ClientOutcome
    tensors: Mapping[str, Any]
    cost: ComputeCost
    ledger: list[list[Any]]
