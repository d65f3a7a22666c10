"""A simulated run: rounds, scores, log lines, and the last federated update."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.model import Score
from fedfomo.core.round import (
    ClientId,
    CommunicationCost,
    Federation,
    RoundResult,
    configure_clients,
    run_round,
    sample_clients,
    traffic_of,
)
from fedfomo.core.sparse import SparseMatrix
from fedfomo.engine.best_round import known_metrics
from fedfomo.engine.checkpoint import Checkpoint
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.engine.runner import CompletedRound, Runner
from fedfomo.engine.tensor_store import TensorStore
from fedfomo.errors import require
from fedfomo.privacy.accountant import EpsilonSpent, from_rows
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.client_batching import Timings
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.executors import Executor, make_executor
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.process_utils import rare_collections
from fedfomo.simulation.ray_executor import RayExecutor
from fedfomo.simulation.scheduling import BatchPolicy
from fedfomo.simulation.transport import Failures, SimulatedTransport, draw_failures
from fedfomo.simulation.worker import ClientRunner, RunSetup

# Beyond this many clients, a dense matrix is more than a reader can use or a disk should hold.
DENSE_LIMIT = 1000
# So many matrices tell how affinity came about; the log has every round's increments.
MOST_MATRICES = 200


@dataclass(frozen=True)
class RunResult:
    """What a run leaves: every client's model after the last federated update, and scores."""

    models: Mapping[ClientId, Tensor]
    after_update: Mapping[ClientId, Score]  # of these models
    after_training: Mapping[ClientId, Score]  # of each client's model after its last local training
    traffic: CommunicationCost
    affinity: SparseMatrix | None  # who values whom
    taken: SparseMatrix | None  # who has learnt from whom
    refusals: Mapping[ClientId, int]  # how many uploads of each client were refused, or trainings forgotten
    gradients: int  # how many examples were differentiated, each as often as it was
    seconds: Timings  # where the time of this process and its workers went
    spent: Mapping[ClientId, EpsilonSpent] | None  # what privacy was left, where there was any
    best_round: int | None = None  # whose updated models these are, the best on validation; None: of the last update


def simulate(
    problem: FederatedProblem,
    algorithm: AnyAlgorithm,
    config: SimulationConfig,
    run_directory: RunDirectory | None = None,
    callback: Callback | None = None,
) -> RunResult:
    """Run all rounds, or those that a checkpoint leaves to run, and one more federated update at the end."""
    with _tensor_files(run_directory) as files, one_torch_thread(), rare_collections():
        setup = RunSetup.of(problem, algorithm, config.rounds, may_stack=config.vectorise)
        make_runner = partial(ClientRunner, setup)
        if config.executor == "ray":
            executor: Executor = RayExecutor(make_runner, files, max(1, config.workers))
        else:
            executor = make_executor(lambda: make_runner(files.reopen()), min(config.workers, len(problem.clients)))
        try:
            run = _SimulatedRun(setup, config, run_directory, callback or Callback(), files, executor)
            return run.finish(run.run())
        finally:
            executor.close()


class _SimulatedRun(Runner):
    """A run whose clients are on this machine."""

    def __init__(
        self,
        setup: RunSetup,
        config: SimulationConfig,
        run_dir: RunDirectory | None,
        callback: Callback,
        files: TensorStore,
        executor: Executor,
    ) -> None:
        problem, algorithm = setup.problem, setup.algorithm
        federation = Federation(algorithm, len(problem.clients), len(problem.initial), problem.seed)
        super().__init__(federation, config.rounds, files, run_dir, config.stop_after)
        self._problem = problem
        self._config = config
        self._callback = callback
        self._privacy = setup.privacy
        self._seconds = Timings()  # of the last round
        # A client's last training is always scored, or "after training" would speak of fewer clients than there are.
        self._last_round = self._last_rounds()
        policy = BatchPolicy(setup.is_stacked, config.workers, 4 * len(problem.initial))
        self._transport = SimulatedTransport(problem, algorithm, executor, files, policy, callback.client_done)
        self._transport.judges = self.best is not None
        if self.best is not None:
            is_open = self._privacy is None
            require(is_open, "stop_after goes by exact scores on validation records, which are private: leave it out")
            is_measured = any(len(data.validation) for data in problem.clients)
            way_out = "give validation data, or leave out stop_after"
            require(is_measured, f"stop_after goes by scores on validation data, and no client has any: {way_out}")

    def start_server(self) -> Any:
        return self.federation.algorithm.start_server(self._problem.start(self.rounds))

    def on_start(self, rounds_done: int) -> None:
        self._callback.start(rounds_done)

    def complete_round(self, before: Checkpoint) -> CompletedRound:
        round, transport = before.rounds_done, self._transport  # noqa: A001
        cohort = self._cohort(round)
        self._restore_clients(before)
        transport.failures = self._failures(round, cohort)
        # Any round may be the last of a run that stops early.
        is_scored = self.best is not None or (round + 1) % self._config.evaluate_every == 0
        transport.scored = [client for client in cohort if is_scored or self._last_round.get(client) == round]
        earlier = replace(transport.seconds)
        result = run_round(self.federation, self.state_of(before), round, cohort, transport)
        refused = {**transport.rolled_back(), **result.refused}
        result = replace(result, refused=dict(sorted(refused.items())))
        self._seconds = transport.seconds.since(earlier)
        if self.run_dir:
            self._write_affinity(self.run_dir, round, result.state)
            self.run_dir.log_seconds({"round": round, **asdict(self._seconds)})
        return CompletedRound(
            result=result,
            log=self._log_line(round, cohort, result),
            after_training=transport.scores()[1],
            memories=transport.memories,
            models=transport.models if self._privacy else {},
            ledgers=transport.ledgers,
            gradients=transport.gradients(),
            validation=transport.validation(),
        )

    def on_round_saved(self, round: int, completed: CompletedRound) -> None:
        self._callback.round_done(FinishedRound(round, *self._transport.scores(), completed.log, self._seconds))

    def finish(self, last: Checkpoint) -> RunResult:
        """Return what the last update brings, or, where the best round is looked for, that round's if it was better."""
        found = self._update_everybody(last)
        before = self.before_best()
        if self.best is None or self.best.round is None or before is None:
            return found
        values = known_metrics(self._transport.validation())
        if values and fmean(values.values()) > self.best.value:
            return found
        spent = {"traffic": found.traffic, "refusals": found.refusals, "gradients": found.gradients}
        return replace(self._update_everybody(before), **spent, best_round=self.best.round + 1)

    def _update_everybody(self, last: Checkpoint) -> RunResult:
        """Let every client, not only the last cohort, personalise once more."""
        state, round, transport = self.state_of(last), last.rounds_done, self._transport  # noqa: A001
        everyone = range(self.federation.num_clients)
        downloads = configure_clients(self.federation, state, round, everyone)
        self._restore_clients(last)
        transport.scored = everyone
        models = transport.personalise(round, downloads)
        traffic = CommunicationCost(**last.traffic) + traffic_of(self.federation.model_size, downloads, {})
        # The server does not learn what clients took in this last update: they say so here.
        taken = self.federation.algorithm.mixing_matrix(state, transport.taken())
        return RunResult(
            models=models,
            after_update=transport.scores()[0],
            after_training=last.scores_after_training,
            traffic=traffic,
            affinity=self.federation.algorithm.affinity(state),
            taken=taken,
            refusals=last.refusals,
            gradients=last.gradients + transport.gradients(),
            seconds=transport.seconds,
            spent={client: self._spent(client) for client in everyone} if self._privacy else None,
        )

    def _restore_clients(self, checkpoint: Checkpoint) -> None:
        """Give clients back what they had between rounds; a round that may have been run before is paid again."""
        transport = self._transport
        transport.memories, transport.models = checkpoint.memories, checkpoint.models
        transport.ledgers = checkpoint.ledgers
        if self._privacy and self._privacy.privacy.mode == "deployment" and self.run_dir:
            _, transport.attempts = self.run_dir.count_attempt(checkpoint.rounds_done)

    def _spent(self, client: ClientId) -> EpsilonSpent:
        assert self._privacy is not None  # noqa: S101 - narrows the type
        return self._privacy.spent(from_rows(self._transport.ledgers.get(client, [])))

    def _cohort(self, round: int) -> list[ClientId]:
        federation = self.federation
        return sample_clients(federation.num_clients, self._config.participation, federation.seed, round)

    def _failures(self, round: int, cohort: list[ClientId]) -> Failures:
        config, federation = self._config, self.federation
        chances = config.client_dropout, config.late_fraction
        return draw_failures(cohort, federation.num_clients, *chances, federation.seed, round)

    def _last_rounds(self) -> dict[ClientId, int]:
        """Find the last round in which each client works, without a look at more rounds than that takes."""
        last: dict[ClientId, int] = {}
        for round in reversed(range(self.rounds)):  # noqa: A001
            cohort = self._cohort(round)
            for client in set(cohort).difference(self._failures(round, cohort).dropped):
                last.setdefault(client, round)
            if len(last) == self.federation.num_clients:
                break
        return last

    def _log_line(self, round: int, cohort: list[ClientId], result: RoundResult[Any]) -> dict[str, Any]:
        transport, config = self._transport, self._config
        after_update, after_training = transport.scores()
        privacy: dict[str, Any] = {}
        # Exact losses of private records stay with the client; noisy ones are paid for.
        shows_losses = self._privacy is None or self._problem.privacy.validation_noise is not None
        if self._privacy is not None:
            epsilons = {client: asdict(self._spent(client)) for client in cohort}
            privacy = {"epsilon": epsilons, "budget_spent": transport.out_of_budget()}
        schema = messages_of(self.federation.algorithm).upload
        failures = asdict(transport.failures) if config.client_dropout or config.late_fraction else {}
        return {
            "round": round,
            "cohort": cohort,
            "after_update": {client: score.as_dict() for client, score in after_update.items()},
            "after_training": {client: score.as_dict() for client, score in after_training.items()},
            "traffic": asdict(result.traffic),
            "refused": result.refused,
            "uploads": {client: messages.numbers_in(schema, upload) for client, upload in result.uploads.items()},
            "judged": transport.losses() if shows_losses else {},
            **({"validation": {k: s.as_dict() for k, s in transport.validation().items()}} if self.best else {}),
            **({"suspected": result.suspected} if result.suspected else {}),
            **privacy,
            **failures,
        }

    def _write_affinity(self, run_dir: RunDirectory, round: int, state: Any) -> None:
        is_kept = (self.rounds - round - 1) % math.ceil(self.rounds / MOST_MATRICES) == 0  # the last one is among them
        affinity = self.federation.algorithm.affinity(state)
        if is_kept and affinity is not None and self.federation.num_clients <= DENSE_LIMIT:
            run_dir.write_tensors(f"affinity/after-round-{round + 1:05d}.safetensors", {"affinity": affinity.dense()})


@contextmanager
def _tensor_files(run_directory: RunDirectory | None) -> Generator[TensorStore]:
    if run_directory is not None:
        yield run_directory.tensors
    else:
        with tempfile.TemporaryDirectory(prefix="fedfomo-") as folder:
            yield TensorStore(Path(folder), durable=False)
