"""The loop of a run: every round starts from a checkpoint and ends by writing the next.

Between rounds a run is a `Checkpoint` and nothing else, so going on after a crash and going on without one are the
same code. Simulator and server differ in how they run a round, and in what they say of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedfomo.core import messages
from fedfomo.core.algorithm import messages_of
from fedfomo.core.client import ClientId
from fedfomo.core.model import Score
from fedfomo.core.round import CommunicationCost, Federation, RoundResult
from fedfomo.engine.best_round import BestRound
from fedfomo.engine.checkpoint import Checkpoint
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.engine.tensor_store import References, TensorStore

LedgerRows = list[list[Any]]


@dataclass(frozen=True)
class CompletedRound:
    """A round that was run, and what is to be kept of it."""

    result: RoundResult[Any]
    log: dict[str, Any]  # the line of rounds.jsonl
    after_training: Mapping[ClientId, Score]
    memories: Mapping[ClientId, References] = field(default_factory=dict[ClientId, References])  # of all clients
    models: Mapping[ClientId, References] = field(default_factory=dict[ClientId, References])  # likewise
    ledgers: Mapping[ClientId, LedgerRows] = field(default_factory=dict[ClientId, LedgerRows])  # likewise
    gradients: int = 0
    validation: Mapping[ClientId, Score] = field(default_factory=dict[ClientId, Score])  # after the federated update


class Runner(ABC):
    """Runs the rounds that a checkpoint leaves to run."""

    def __init__(
        self,
        federation: Federation,
        rounds: int,
        tensors: TensorStore,
        run_dir: RunDirectory | None,
        stop_after: int | None = None,
    ) -> None:
        self.federation = federation
        self.rounds = rounds
        self.tensors = tensors
        self.run_dir = run_dir
        self.best = None if stop_after is None else BestRound(stop_after)
        self._before_best: Checkpoint | None = None

    @abstractmethod
    def start_server(self) -> Any:
        """Return the server's state before the first round."""

    @abstractmethod
    def complete_round(self, before: Checkpoint) -> CompletedRound:
        """Run the round that comes after a checkpoint."""

    def on_start(self, rounds_done: int) -> None:  # noqa: B027 - a hook
        """Called once, with the number of rounds that a checkpoint had already."""

    def on_round_saved(self, round: int, completed: CompletedRound) -> None:  # noqa: B027 - a hook
        """Called when a round is on disk."""

    def run(self) -> Checkpoint:
        """Run all rounds that are left, and return the last checkpoint."""
        checkpoint = (self.run_dir and self.run_dir.checkpoints.newest(self.run_dir.configuration)) or self._first()
        if self.run_dir:
            self.run_dir.truncate_log(checkpoint.log_bytes)
        self.tensors.checksums.update(checkpoint.checksums)
        self._recall_best(checkpoint)
        self.on_start(checkpoint.rounds_done)
        while checkpoint.rounds_done < self.rounds and not (self.best and self.best.has_stalled):
            round, completed = checkpoint.rounds_done, self.complete_round(checkpoint)  # noqa: A001
            if self.best and self.best.see(round, completed.validation):
                self._pin(checkpoint)
            checkpoint = self._save(checkpoint, completed)
            self.on_round_saved(round, completed)
        return checkpoint

    def before_best(self) -> Checkpoint | None:
        """Return the checkpoint from which the best round began; None: nobody looks for it, or it is lost."""
        if self.best is None or self.best.round is None:
            return None
        if self.best.round == 0:
            return self._first()
        if self._before_best is not None:
            self.tensors.checksums.update(self._before_best.checksums)
        return self._before_best

    def _pin(self, before: Checkpoint) -> None:
        self._before_best = before
        if self.run_dir:
            self.run_dir.checkpoints.pinned = before.rounds_done

    def _recall_best(self, checkpoint: Checkpoint) -> None:
        """Find out from the log which of the rounds done was the best."""
        if self.best is None or not self.run_dir:
            return
        for line in self.run_dir.read_log():
            scores = {int(client): Score.from_dict(score) for client, score in line["validation"].items()}
            self.best.see(line["round"], scores)
        if self.best.round and checkpoint.rounds_done:
            self.run_dir.checkpoints.pinned = self.best.round
            self._before_best = self.run_dir.checkpoints.at(self.best.round)

    def state_of(self, checkpoint: Checkpoint) -> Any:
        """Read the server's state."""
        return messages.unpack(messages_of(self.federation.algorithm).state, self.tensors.load(checkpoint.state))

    def _first(self) -> Checkpoint:
        state = self.tensors.save("start.safetensors", messages.pack(self.start_server()))
        configuration = self.run_dir.configuration if self.run_dir else ""
        nothing = asdict(CommunicationCost())
        return Checkpoint(configuration, 0, state, {}, {}, {}, nothing, 0, 0, self.tensors.checksums)

    def _save(self, before: Checkpoint, completed: CompletedRound) -> Checkpoint:
        run_dir, result = self.run_dir, completed.result
        log_bytes = run_dir.log(completed.log) if run_dir else 0
        state = self.tensors.save(f"round-{before.rounds_done:05d}-server.safetensors", messages.pack(result.state))
        after = Checkpoint(
            configuration=before.configuration,
            rounds_done=before.rounds_done + 1,
            state=state,
            memories=completed.memories,
            scores_after_training={**before.scores_after_training, **completed.after_training},
            refusals={**before.refusals, **{client: before.refusals.get(client, 0) + 1 for client in result.refused}},
            traffic=asdict(CommunicationCost(**before.traffic) + result.traffic),
            gradients=before.gradients + completed.gradients,
            log_bytes=log_bytes,
            checksums={},
            models=completed.models,
            ledgers=completed.ledgers,
            log_checksum=run_dir.log_checksum if run_dir else None,
        ).with_checksums(self.tensors.checksums)
        if run_dir:
            run_dir.checkpoints.save(after)
        best = self._before_best.files() if self._before_best else set[str]()
        self.tensors.delete_all_but(run_dir.checkpoints.files_in_use() if run_dir else after.files() | best)
        return after
