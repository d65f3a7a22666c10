"""A federation's run on the server: rounds, checkpoints, and the last federated update.

Flower keeps everything in memory; here a run between rounds is a checkpoint on disk and nothing else. Whatever dies,
the next attempt goes on from the last complete round, and every upload is applied once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from flwr.serverapp import Grid

from fedfomo.core import messages
from fedfomo.core.algorithm import messages_of
from fedfomo.core.client import ClientId, FederationInfo
from fedfomo.core.round import (
    CommunicationCost,
    Federation,
    RoundResult,
    configure_clients,
    run_round,
    sample_clients,
    traffic_of,
    upload_check,
)
from fedfomo.deployment.allowed_methods import make_method
from fedfomo.deployment.sanitise import printable
from fedfomo.deployment.settings import FederationConfig, FederationFolder
from fedfomo.deployment.site_connections import SiteConnections
from fedfomo.deployment.transport import FlowerExchange, TooFewError
from fedfomo.deployment.user_model import layout_digest, load_model
from fedfomo.engine.checkpoint import Checkpoint
from fedfomo.engine.run_dir import RunDirectory, to_json
from fedfomo.io import PRIVATE, write_atomically

POLL = 0.5  # seconds between looks at who is on line
LONGEST_PAUSE = 30.0  # seconds before a round is played again

log = logging.getLogger(__name__)


def serve(grid: Grid, folder: FederationFolder) -> None:
    """Play what is left of the federation's rounds."""
    config = folder.config()
    own = load_model(folder.model, config.seed)
    (folder.server / "run").mkdir(mode=0o700, exist_ok=True)
    home = RunDirectory(folder.server / "run", _digest(config, folder.identity(), own.model), log.warning)
    try:
        present = tuple(sorted(site.slot for site in folder.members()))
        start = FederationInfo(own.initial, own.model.layout, config.capacity, config.rounds, present=present)
        _ServerRun(grid, folder, config, start, layout_digest(own.model), home).play()
    finally:
        home.close()


class _ServerRun:
    """The constants of an attempt, and the step from one checkpoint to the next."""

    def __init__(
        self,
        grid: Grid,
        folder: FederationFolder,
        config: FederationConfig,
        start: FederationInfo,
        layout: str,
        home: RunDirectory,
    ) -> None:
        self._folder = folder
        self._config = config
        self._start = start
        self._home = home
        self._algorithm = make_method(config.method, config.options)
        self._federation = Federation(self._algorithm, config.capacity, len(start.initial), config.seed)
        self._post = SiteConnections(grid, folder)
        constants = {
            "federation": folder.identity(),
            "attempt": self._next_attempt(),
            "rounds": config.rounds,
            "num_clients": config.capacity,
            "method": config.method,
            "options": config.options,
            "seed": config.seed,
            "training": asdict(config.training),
            "layout": layout,
            "channels_last": start.layout.channels_last,
            "bits": config.bits,
            "limit": config.norm_bound * max(1.0, float(start.initial.double().norm())),
        }
        initial = {"theta": start.initial}
        self._exchange = FlowerExchange(
            self._post, self._algorithm, constants, initial, config.deadline, config.minimum
        )

    def play(self) -> None:
        """Play the rounds that a checkpoint leaves to play, and one more federated update at the end."""
        checkpoint = self._home.checkpoints.newest(self._home.configuration) or self._first()
        self._home.truncate_log(checkpoint.log_bytes)
        self._home.tensors.checksums.update(checkpoint.checksums)
        self._await_everybody()
        while checkpoint.rounds_done < self._config.rounds:
            checkpoint = self._round(checkpoint)
        self._finish(checkpoint)

    def _first(self) -> Checkpoint:
        files = self._home.tensors
        references = files.save("start.safetensors", messages.pack(self._algorithm.start_server(self._start)))
        nothing = asdict(CommunicationCost())
        return Checkpoint(self._home.configuration, 0, references, {}, {}, {}, nothing, 0, 0, files.checksums)

    def _round(self, before: Checkpoint) -> Checkpoint:
        round, began = before.rounds_done, time.monotonic()  # noqa: A001
        played, cohort = self._play(round, self._state(before))
        refused = _printable({**played.refused, **self._exchange.refused})
        after = Checkpoint(
            configuration=before.configuration,
            rounds_done=round + 1,
            state=self._home.tensors.save(f"round-{round:05d}-server.safetensors", messages.pack(played.state)),
            memories={},  # they stay at the sites
            scores_after_training={**before.scores_after_training, **self._exchange.after_training},
            refusals={**before.refusals, **{slot: before.refusals.get(slot, 0) + 1 for slot in refused}},
            traffic=asdict(CommunicationCost(**before.traffic) + played.traffic),
            gradients=0,
            log_bytes=self._log(round, cohort, refused, played.suspected),
            log_checksum=self._home.log_checksum,
            checksums={},
        ).with_checksums(self._home.tensors.checksums)
        self._home.checkpoints.save(after)
        self._home.tensors.delete_all_but(self._home.checkpoints.files_in_use())
        self._tell_status(round + 1, cohort, refused, played.suspected, time.monotonic() - began)
        return after

    def _play(self, round: int, state: Any) -> tuple[RoundResult[Any], list[ClientId]]:
        """Play a round until enough sites have answered it; who has done so once, answers the same again.

        Whatever kept some from answering may last: each time one site more is asked, after a longer pause.
        """
        config, least, pause = self._config, self._config.minimum, POLL
        while True:
            self._exchange.nodes = self._at_least(config.minimum)
            state = self._of_members(state)  # it may have been a long wait
            online = sorted(self._exchange.nodes)
            drawn = sample_clients(len(online), config.participation, config.seed, round, least)
            cohort = [online[place] for place in drawn]
            began = time.monotonic()
            self._exchange.validate = upload_check(self._federation, state)
            try:
                return run_round(self._federation, state, round, cohort, self._exchange), cohort
            except TooFewError as error:
                log.warning("round %d is played again in %g s: %s", round, pause, error)
                seconds = time.monotonic() - began
                self._tell_status(round, cohort, _printable(self._exchange.refused), {}, seconds, again=str(error))
            time.sleep(pause)
            least, pause = least + 1, min(2 * pause, LONGEST_PAUSE)

    def _finish(self, last: Checkpoint) -> None:
        self._exchange.nodes = self._post.online()
        state, round = self._of_members(self._state(last)), last.rounds_done  # noqa: A001
        downloads = configure_clients(self._federation, state, round, sorted(self._exchange.nodes))
        self._exchange.personalise(round, downloads)
        traffic = CommunicationCost(**last.traffic) + traffic_of(len(self._start.initial), downloads, {})
        names, members = self._post.names(), {site.name for site in self._folder.members()}
        affinity = self._algorithm.affinity(state)
        result = {
            "method": self._config.method,
            "rounds": self._config.rounds,
            "after_update": {names[slot]: asdict(score) for slot, score in self._exchange.after_update.items()},
            "without_last_update": sorted(members - {names[slot] for slot in self._exchange.answered}),
            "left": sorted(set(names.values()) - members),
            "refusals": {names[slot]: number for slot, number in last.refusals.items()},
            "traffic": asdict(traffic),
            "sites": {name: slot for slot, name in names.items()},
            "affinity": None if affinity is None else affinity.dense().tolist(),
        }
        write_atomically(self._folder.result, to_json(result, indent=1).encode(), mode=PRIVATE)

    def _await_everybody(self) -> None:
        closes = time.monotonic() + self._config.patience
        while time.monotonic() < closes and len(self._post.online()) < len(self._folder.members()):
            time.sleep(POLL)

    def _at_least(self, minimum: int) -> Mapping[ClientId, int]:
        while len(nodes := self._post.online()) < minimum:
            time.sleep(POLL)
        return nodes

    def _state(self, checkpoint: Checkpoint) -> Any:
        return messages.unpack(messages_of(self._algorithm).state, self._home.tensors.load(checkpoint.state))

    def _of_members(self, state: Any) -> Any:
        return self._algorithm.forget_clients(state, {site.slot for site in self._folder.members()})

    def _next_attempt(self) -> int:
        """Count attempts on disk: an order of an earlier one is refused by sites that have heard of a later."""
        path = self._home.folder / "attempts"
        attempt = 1 + (int(path.read_text()) if path.exists() else 0)
        write_atomically(path, str(attempt).encode())
        return attempt

    def _log(
        self, round: int, cohort: list[ClientId], refused: Mapping[ClientId, str], suspected: Mapping[ClientId, str]
    ) -> int:
        exchange = self._exchange
        return self._home.log(
            {
                "round": round,
                "cohort": cohort,
                "answered": sorted(exchange.answered),
                "faults": dict(sorted(self._post.faults.items())),
                "refused": dict(refused),
                "suspected": dict(suspected),
                "after_update": {slot: asdict(score) for slot, score in sorted(exchange.after_update.items())},
                "after_training": {slot: asdict(score) for slot, score in sorted(exchange.after_training.items())},
                "bytes_sent": self._post.bytes_sent,
                "bytes_received": self._post.bytes_received,
            }
        )

    def _tell_status(
        self,
        rounds_done: int,
        cohort: list[ClientId],
        refused: Mapping[ClientId, str],
        suspected: Mapping[ClientId, str],
        seconds: float,
        again: str | None = None,  # why a round is played again
    ) -> None:
        names = self._post.names()
        status = {
            "rounds_done": rounds_done,
            "rounds": self._config.rounds,
            "again": again,
            "asked": [names[slot] for slot in cohort],
            "answered": [names[slot] for slot in sorted(self._exchange.answered)],
            "faults": {names[slot]: fault for slot, fault in self._post.faults.items()},
            "refused": {names[slot]: fault for slot, fault in refused.items()},
            "suspected": {names[slot]: reason for slot, reason in suspected.items()},
            "bytes_sent": self._post.bytes_sent,
            "bytes_received": self._post.bytes_received,
            "seconds": seconds,
            "time": time.time(),
        }
        write_atomically(self._folder.status, json.dumps(status, indent=1).encode())


def _printable(refused: Mapping[ClientId, str]) -> dict[ClientId, str]:
    """Return why uploads were refused; the reason may quote what a site called its tensors."""
    return {slot: printable(reason) for slot, reason in refused.items()}


def _digest(config: FederationConfig, identity: str, model: Any) -> str:
    """Hash whatever decides the result, so that a checkpoint is never continued under other conditions."""
    settings = asdict(config)
    for name in ("address", "listen", "minimum", "deadline", "patience", "plaintext"):
        del settings[name]
    return hashlib.sha256(repr((settings, identity, layout_digest(model))).encode()).hexdigest()
