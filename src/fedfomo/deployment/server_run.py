"""A federation's run on the server: rounds, checkpoints, and the last federated update.

Flower keeps everything in memory; here a run between rounds is a checkpoint on disk and nothing else. Whatever dies,
the next attempt goes on from the last complete round, and every upload is applied once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.client import ClientId, FederationInfo
from fedfomo.core.metrics import Metrics
from fedfomo.core.round import (
    CommunicationCost,
    Federation,
    RoundResult,
    configure_clients,
    run_round,
    sample_clients,
    traffic_of,
)
from fedfomo.deployment.allowed_methods import make_method
from fedfomo.deployment.experiments import keep_uploads, starting_models
from fedfomo.deployment.flower_grid import MessageGrid
from fedfomo.deployment.flower_transport import FlowerTransport, TooFewError
from fedfomo.deployment.protocol import digest_of
from fedfomo.deployment.settings import FIRST, FederationConfig, FederationFolder
from fedfomo.deployment.site_connections import SiteConnections
from fedfomo.deployment.user_model import layout_digest, load_model
from fedfomo.engine.checkpoint import Checkpoint
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.engine.runner import CompletedRound, Runner
from fedfomo.io import PRIVATE, printable, to_json, write_atomically
from fedfomo.simulation.problem import check_trainer

POLL = 0.5  # seconds between looks at who is on line
LONGEST_PAUSE = 30.0  # seconds before a round is run again

log = logging.getLogger(__name__)


def serve(grid: MessageGrid, folder: FederationFolder) -> None:
    """Run what is left of the federation's rounds."""
    config = folder.config()
    algorithm = make_method(config.method, config.options)
    own = load_model(folder.model, config.seed).split(algorithm)
    if own.trainer is not None:
        check_trainer(own.trainer, algorithm, own.model.rebuilt(algorithm.network))
    folder.run.mkdir(mode=0o700, exist_ok=True)
    initial, starts = starting_models(folder, own.initial)
    run_dir = RunDirectory(folder.run, _digest(config, folder.identity(), own.model, starts), log.warning)
    try:
        present = tuple(sorted(site.slot for site in folder.members()))
        start = FederationInfo(initial, own.model.layout, config.max_sites, config.rounds, present=present)
        metrics, layout = own.model.metrics, layout_digest(own.model)
        run = _ServerRun(grid, folder, config, algorithm, start, starts, layout, metrics, run_dir)
        run.finish(run.run())
    finally:
        run_dir.close()


@dataclass(frozen=True)
class _Present:
    """Who is on line, and who is not, by name."""

    online: list[str]
    missing: list[str]


class _ServerRun(Runner):
    """A run whose clients are sites."""

    def __init__(
        self,
        grid: MessageGrid,
        folder: FederationFolder,
        config: FederationConfig,
        algorithm: AnyAlgorithm,
        start: FederationInfo,
        starts: Mapping[ClientId, Tensor],  # of sites that start from a model of their own
        layout: str,
        metrics: Metrics,
        run_dir: RunDirectory,
    ) -> None:
        federation = Federation(algorithm, config.max_sites, len(start.initial), config.seed)
        super().__init__(federation, config.rounds, run_dir.tensors, run_dir)
        self._folder = folder
        self._config = config
        self._start = start
        self._layout = layout
        self._metrics = metrics
        self._run_dir = run_dir
        self._cohort: list[ClientId] = []  # of the last round
        self._seconds = 0.0  # that it took
        self._since = time.time()  # when the last round was complete, or the server was started
        self._connections = SiteConnections(grid, folder)
        self._connections.note_start(starts)
        models = [start.initial, *starts.values()]
        constants = {
            "federation": folder.identity(),
            **({"experiment": folder.experiment} if folder.experiment else {}),
            "rounds": config.rounds,
            "num_clients": config.max_sites,
            "method": config.method,
            "options": config.options,
            "seed": config.seed,
            "training": asdict(config.training),
            "layout": layout,
            "channels_last": start.layout.channels_last,
            "bits": config.bits,
            "limit": config.norm_bound * max(1.0, *(float(model.double().norm()) for model in models)),
        }
        self._transport = FlowerTransport(
            self._connections,
            algorithm,
            constants,
            start.initial,
            starts,
            config.deadline,
            config.min_clients,
            is_share=metrics.leading == "accuracy",
        )

    def start_server(self) -> Any:
        return self.federation.algorithm.start_server(self._start)

    def on_start(self, rounds_done: int) -> None:
        """Wait for all sites, but not for ever; requests of an earlier attempt are refused by sites from now on."""
        self._run_dir.count_attempt(rounds_done)
        # Not its number: a server from a backup would count anew what sites have heard of before.
        self._transport.attempt = max(self._connections.latest_attempt + 1, int(1000 * time.time()))
        closes, told = time.monotonic() + self._config.startup_timeout, None
        while True:
            told = self._tell_who_waits(rounds_done, self._connections.online(), told)
            if not told.missing or time.monotonic() >= closes:
                return
            time.sleep(POLL)

    def complete_round(self, before: Checkpoint) -> CompletedRound:
        round, began = before.rounds_done, time.monotonic()  # noqa: A001
        result, self._cohort = self._until_enough_answer(round, self.state_of(before))
        result = replace(result, refused=_printable({**result.refused, **self._transport.refused}))
        self._seconds = time.monotonic() - began
        keep_uploads(self._folder, result.uploads, self._layout, len(self._start.initial))
        return CompletedRound(result, self._log_line(round, result), self._transport.after_training)

    def on_round_saved(self, round: int, completed: CompletedRound) -> None:
        self._since = time.time()
        self._tell_status(round + 1, self._cohort, completed.result.refused, completed.result.suspected, self._seconds)

    def _until_enough_answer(self, round: int, state: Any) -> tuple[RoundResult[Any], list[ClientId]]:
        """Run a round until enough sites have answered it; who has done so once, answers the same again.

        Whatever kept some from answering may last: each time one site more is asked, after a longer pause.
        """
        config, least, pause = self._config, self._config.min_clients, POLL
        while True:
            self._transport.nodes = self._at_least(config.min_clients, round)
            state = self._of_members(state)  # it may have been a long wait
            online = sorted(self._transport.nodes)
            drawn = sample_clients(len(online), config.participation, config.seed, round, least)
            cohort = [online[place] for place in drawn]
            began = time.monotonic()
            log_upload = partial(self._transport.log_upload, round)
            try:
                return run_round(self.federation, state, round, cohort, self._transport, log_upload), cohort
            except TooFewError as error:
                log.warning("round %d is run again in %g s: %s", round, pause, error)
                seconds = time.monotonic() - began
                self._tell_status(round, cohort, _printable(self._transport.refused), {}, seconds, again=str(error))
            time.sleep(pause)
            least, pause = least + 1, min(2 * pause, LONGEST_PAUSE)

    def finish(self, last: Checkpoint) -> None:
        """Let every site on line personalise once more."""
        self._transport.nodes = self._connections.online()
        state, round = self._of_members(self.state_of(last)), last.rounds_done  # noqa: A001
        downloads = configure_clients(self.federation, state, round, sorted(self._transport.nodes))
        self._transport.personalise(round, downloads)
        traffic = CommunicationCost(**last.traffic) + traffic_of(len(self._start.initial), downloads, {})
        names, members = self._connections.names(), {site.name for site in self._folder.members()}
        affinity = self.federation.algorithm.affinity(state)
        result = {
            "experiment": self._folder.experiment or FIRST,
            "method": self._config.method,
            "rounds": self._config.rounds,
            "after_update": {names[slot]: score.as_dict() for slot, score in self._transport.after_update.items()},
            "without_last_update": sorted(members - {names[slot] for slot in self._transport.answered}),
            "left": sorted(set(names.values()) - members),
            "refusals": {names[slot]: number for slot, number in last.refusals.items()},
            "is_of_sets": not self._metrics.is_per_example,
            "traffic": asdict(traffic),
            "sites": {name: slot for slot, name in names.items()},
            "affinity": None if affinity is None else affinity.dense().tolist(),
        }
        write_atomically(self._folder.result, to_json(result, indent=1).encode(), mode=PRIVATE)

    def _at_least(self, min_clients: int, rounds_done: int) -> Mapping[ClientId, int]:
        told = None
        while len(nodes := self._connections.online()) < min_clients:
            told = self._tell_who_waits(rounds_done, nodes, told)
            time.sleep(POLL)
        return nodes

    def _tell_who_waits(self, rounds_done: int, online: Collection[ClientId], told: _Present | None) -> _Present:
        """Say who is on line and who is not, if that is another word than the one before; return it."""
        members = self._folder.members()
        here, missing = (
            [site.name for site in members if (site.slot in online) == is_here] for is_here in (True, False)
        )
        present = _Present(here, missing)
        if present != told:
            self._tell_waiting(rounds_done, present)
        return present

    def _of_members(self, state: Any) -> Any:
        return self.federation.algorithm.forget_clients(state, {site.slot for site in self._folder.members()})

    def _log_line(self, round: int, result: RoundResult[Any]) -> dict[str, Any]:
        transport = self._transport
        return {
            "round": round,
            "cohort": self._cohort,
            "answered": sorted(transport.answered),
            "faults": dict(sorted(self._connections.faults.items())),
            "refused": dict(result.refused),
            "suspected": dict(result.suspected),
            "after_update": {slot: score.as_dict() for slot, score in sorted(transport.after_update.items())},
            "after_training": {slot: score.as_dict() for slot, score in sorted(transport.after_training.items())},
            "bytes_sent": self._connections.bytes_sent,
            "bytes_received": self._connections.bytes_received,
        }

    def _tell_waiting(self, rounds_done: int, present: _Present) -> None:
        status = {
            "rounds_done": rounds_done,
            "rounds": self._config.rounds,
            **asdict(present),
            "least": self._config.min_clients,
            "since": self._since,
            "time": time.time(),
        }
        write_atomically(self._folder.status, json.dumps(status, indent=1).encode())

    def _tell_status(
        self,
        rounds_done: int,
        cohort: list[ClientId],
        refused: Mapping[ClientId, str],
        suspected: Mapping[ClientId, str],
        seconds: float,
        again: str | None = None,  # why a round is run again
    ) -> None:
        names = self._connections.names()
        status = {
            "rounds_done": rounds_done,
            "rounds": self._config.rounds,
            "again": again,
            "asked": [names[slot] for slot in cohort],
            "answered": [names[slot] for slot in sorted(self._transport.answered)],
            "faults": {names[slot]: fault for slot, fault in self._connections.faults.items()},
            "refused": {names[slot]: fault for slot, fault in refused.items()},
            "suspected": {names[slot]: reason for slot, reason in suspected.items()},
            "bytes_sent": self._connections.bytes_sent,
            "bytes_received": self._connections.bytes_received,
            "seconds": seconds,
            "since": self._since,
            "time": time.time(),
        }
        write_atomically(self._folder.status, json.dumps(status, indent=1).encode())


def _printable(refused: Mapping[ClientId, str]) -> dict[ClientId, str]:
    """Return why uploads were refused; the reason may quote what a site called its tensors."""
    return {slot: printable(reason) for slot, reason in refused.items()}


def _digest(config: FederationConfig, identity: str, model: Any, starts: Mapping[ClientId, Tensor]) -> str:
    """Hash whatever decides the result, so that a checkpoint is never continued under other conditions."""
    # By the name that earlier versions have for it: their runs are gone on with.
    settings = {"capacity" if name == "max_sites" else name: value for name, value in asdict(config).items()}
    for name in ("address", "listen", "min_clients", "deadline", "startup_timeout", "plaintext"):
        del settings[name]
    begun = [(slot, digest_of(start)) for slot, start in starts.items()]
    decides = (settings, identity, layout_digest(model), *([begun] if begun else []))
    return hashlib.sha256(repr(decides).encode()).hexdigest()
