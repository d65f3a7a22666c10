"""A whole run: rounds, scores, checkpoints, and the last federated update.

Between rounds a run is a `Checkpoint` and nothing else: every round starts by reading one and ends by making the
next, so going on after a crash and going on without one are the same code.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
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
from fedfomo.engine.checkpoint import Checkpoint
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.engine.tensor_store import TensorStore
from fedfomo.io import to_json
from fedfomo.privacy.accountant import EpsilonSpent, from_rows
from fedfomo.simulation.callbacks import Listener, Watcher
from fedfomo.simulation.client_batching import Timings
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.dropout import Failures, draw_failures
from fedfomo.simulation.executors import Executor, make_executor
from fedfomo.simulation.ray_executor import RayExecutor
from fedfomo.simulation.scheduling import BatchPolicy
from fedfomo.simulation.transport import SimulatedTransport
from fedfomo.simulation.worker import ClientRunner, FederatedProblem, stack_of

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


def simulate(
    problem: FederatedProblem,
    algorithm: AnyAlgorithm,
    plan: SimulationConfig,
    home: RunDirectory | None = None,
    watcher: Watcher | None = None,
    listener: Listener | None = None,
) -> RunResult:
    """Play all rounds, or those that a checkpoint leaves to play, and one more federated update at the end."""
    with _tensor_files(home) as files, one_torch_thread():
        start = problem.start(plan.rounds)
        guard = problem.guard(plan.rounds)
        if guard is not None:
            guard.check(problem.model_of(algorithm), problem.clients)
        is_stacked = plan.vectorise and stack_of(problem, problem.model_of(algorithm)) is not None
        client_side = partial(ClientRunner, problem, start, algorithm, is_stacked=is_stacked)
        if plan.executor == "ray":
            crew: Executor = RayExecutor(client_side, files, max(1, plan.workers))
        else:
            crew = make_executor(lambda: client_side(files.reopen()), min(plan.workers, len(problem.clients)))
        try:
            grouping = BatchPolicy(is_stacked, plan.workers, 4 * len(problem.initial), may_split=guard is None)
            run = _Run(problem, algorithm, plan, home, watcher, listener, files, crew, grouping)
            checkpoint = (home and home.checkpoints.newest(home.configuration)) or run.start()
            if home:
                home.truncate_log(checkpoint.log_bytes)
            files.checksums.update(checkpoint.checksums)
            if watcher:
                watcher.start(checkpoint.rounds_done)
            while checkpoint.rounds_done < plan.rounds:
                checkpoint = run.run_round(checkpoint)
            return run.finish(checkpoint)
        finally:
            crew.close()


class _Run:
    """The constants of a run, and the step from one checkpoint to the next."""

    def __init__(
        self,
        problem: FederatedProblem,
        algorithm: AnyAlgorithm,
        plan: SimulationConfig,
        home: RunDirectory | None,
        watcher: Watcher | None,
        listener: Listener | None,
        files: TensorStore,
        crew: Executor,
        grouping: BatchPolicy,
    ) -> None:
        self._problem = problem
        self._algorithm = algorithm
        self._plan = plan
        self._home = home
        self._watcher = watcher
        self._listener = listener
        self._files = files
        self._guard = problem.guard(plan.rounds)
        self._federation = Federation(algorithm, len(problem.clients), len(problem.initial), problem.seed)
        # A client's last training is always scored, or "after training" would speak of fewer clients than there are.
        self._last_round = self._last_rounds()
        client_done = watcher.client_done if watcher else None
        self._exchange = SimulatedTransport(problem, algorithm, crew, files, grouping, client_done)

    def start(self) -> Checkpoint:
        state = self._algorithm.start_server(self._problem.start(self._plan.rounds))
        references = self._files.save("start.safetensors", messages.pack(state))
        configuration = self._home.configuration if self._home else ""
        return Checkpoint(
            configuration, 0, references, {}, {}, {}, asdict(CommunicationCost()), 0, 0, self._files.checksums
        )

    def run_round(self, before: Checkpoint) -> Checkpoint:
        round, plan = before.rounds_done, self._plan  # noqa: A001
        cohort = self._cohort(round)
        self._hand_over(before)
        self._exchange.failures = self._failures(round, cohort)
        is_scored = (round + 1) % plan.evaluate_every == 0
        self._exchange.scored = [client for client in cohort if is_scored or self._last_round.get(client) == round]
        earlier = replace(self._exchange.seconds)
        played = run_round(self._federation, self._state(before), round, cohort, self._exchange)
        refused = {**self._exchange.rolled_back(), **played.refused}
        played = replace(played, refused=dict(sorted(refused.items())))
        after_update, after_training = self._exchange.scores()
        seconds = self._exchange.seconds.since(earlier)
        line = self._line(round, cohort, played, after_update, after_training)
        log_bytes = self._log(line, played.state, seconds)
        after = Checkpoint(
            models=self._exchange.models if self._guard else {},
            bills=self._exchange.bills,
            configuration=before.configuration,
            rounds_done=round + 1,
            state=self._files.save(f"round-{round:05d}-server.safetensors", messages.pack(played.state)),
            memories=self._exchange.memories,
            scores_after_training={**before.scores_after_training, **after_training},
            refusals={**before.refusals, **{c: before.refusals.get(c, 0) + 1 for c in played.refused}},
            traffic=asdict(CommunicationCost(**before.traffic) + played.traffic),
            gradients=before.gradients + self._exchange.gradients(),
            log_bytes=log_bytes,
            log_checksum=self._home.log_checksum if self._home else None,
            checksums={},
        )
        after = after.with_checksums(self._files.checksums)
        if self._home:
            self._home.checkpoints.save(after)
        self._files.delete_all_but(self._home.checkpoints.files_in_use() if self._home else after.files())
        if self._listener:  # once the round is safe, whatever comes of telling
            self._listener(json.loads(to_json(line)), seconds)
        if self._watcher:
            self._watcher.round_done(round, after_update, after_training)
        return after

    def finish(self, last: Checkpoint) -> RunResult:
        """Let every client, not only the last cohort, personalise once more."""
        state, round = self._state(last), last.rounds_done  # noqa: A001
        everyone = range(self._federation.num_clients)
        downloads = configure_clients(self._federation, state, round, everyone)
        self._hand_over(last)
        self._exchange.scored = everyone
        models = self._exchange.personalise(round, downloads)
        traffic = CommunicationCost(**last.traffic) + traffic_of(len(self._problem.initial), downloads, {})
        # The server is not told what clients took in this last update: their memories know. Whoever could not pay for
        # it took nothing, and remembers what it took before.
        moved = sorted(set(everyone).difference(self._exchange.spent()))
        taken = self._algorithm.mixing_matrix(state, {client: self._exchange.memory_of(client) for client in moved})
        self._files.forget()
        return RunResult(
            models=models,
            after_update=self._exchange.scores()[0],
            after_training=last.scores_after_training,
            traffic=traffic,
            affinity=self._algorithm.affinity(state),
            taken=taken,
            refusals=last.refusals,
            gradients=last.gradients + self._exchange.gradients(),
            seconds=self._exchange.seconds,
            spent={client: self._spent(client) for client in everyone} if self._guard else None,
        )

    def _hand_over(self, checkpoint: Checkpoint) -> None:
        """Give clients back what they had between rounds; a round that may have been played before is paid again."""
        self._exchange.memories = checkpoint.memories
        self._exchange.models = checkpoint.models
        self._exchange.bills = checkpoint.bills
        if self._guard and self._guard.privacy.mode == "deployment" and self._home:
            self._exchange.attempts = self._home.count_attempt(checkpoint.rounds_done)

    def _spent(self, client: ClientId) -> EpsilonSpent:
        assert self._guard is not None  # noqa: S101 - narrows the type
        return self._guard.spent(from_rows(self._exchange.bills.get(client, [])))

    def _cohort(self, round: int) -> list[ClientId]:
        federation = self._federation
        return sample_clients(federation.num_clients, self._plan.participation, federation.seed, round)

    def _failures(self, round: int, cohort: list[ClientId]) -> Failures:
        plan, federation = self._plan, self._federation
        return draw_failures(
            cohort, federation.num_clients, plan.client_dropout, plan.late_fraction, federation.seed, round
        )

    def _last_rounds(self) -> dict[ClientId, int]:
        """Find the last round in which each client works, without a look at more rounds than that takes."""
        last: dict[ClientId, int] = {}
        for round in reversed(range(self._plan.rounds)):  # noqa: A001
            cohort = self._cohort(round)
            for client in set(cohort).difference(self._failures(round, cohort).dropped):
                last.setdefault(client, round)
            if len(last) == self._federation.num_clients:
                break
        return last

    def _state(self, checkpoint: Checkpoint) -> Any:
        return messages.unpack(messages_of(self._algorithm).state, self._files.load(checkpoint.state))

    def _line(
        self,
        round: int,
        cohort: list[ClientId],
        played: RoundResult[Any],
        after_update: Mapping[ClientId, Score],
        after_training: Mapping[ClientId, Score],
    ) -> dict[str, Any]:
        """Return what the log says of a round."""
        privacy: dict[str, Any] = {}
        # Exact losses of private records stay with the client; noisy ones are paid for.
        is_telling = self._guard is None or self._problem.privacy.validation_noise is not None
        if self._guard is not None:
            epsilons = {client: asdict(self._spent(client)) for client in cohort}
            privacy = {"epsilon": epsilons, "budget_spent": self._exchange.spent()}
        schema = messages_of(self._algorithm).upload
        failures = asdict(self._exchange.failures) if self._plan.client_dropout or self._plan.late_fraction else {}
        return {
            "round": round,
            "cohort": cohort,
            "after_update": {client: asdict(score) for client, score in after_update.items()},
            "after_training": {client: asdict(score) for client, score in after_training.items()},
            "traffic": asdict(played.traffic),
            "refused": played.refused,
            "uploads": {client: messages.numbers_in(schema, upload) for client, upload in played.uploads.items()},
            "judged": self._exchange.losses() if is_telling else {},
            **({"suspected": played.suspected} if played.suspected else {}),
            **privacy,
            **failures,
        }

    def _log(self, line: dict[str, Any], state: Any, seconds: Timings) -> int:
        """Write down a round; return how long the log is then."""
        if self._home is None:
            return 0
        self._write_affinity(self._home, line["round"], state)
        self._home.log_seconds({"round": line["round"], **asdict(seconds)})
        return self._home.log(line)

    def _write_affinity(self, home: RunDirectory, round: int, state: Any) -> None:
        planned = self._plan.rounds
        is_kept = (planned - round - 1) % math.ceil(planned / MOST_MATRICES) == 0  # the last one is among them
        affinity = self._algorithm.affinity(state)
        if is_kept and affinity is not None and self._federation.num_clients <= DENSE_LIMIT:
            home.write_tensors(f"affinity/after-round-{round + 1:05d}.safetensors", {"affinity": affinity.dense()})


@contextmanager
def _tensor_files(home: RunDirectory | None) -> Generator[TensorStore]:
    if home is not None:
        yield home.tensors
    else:
        with tempfile.TemporaryDirectory(prefix="fedfomo-") as folder:
            yield TensorStore(Path(folder), durable=False)
