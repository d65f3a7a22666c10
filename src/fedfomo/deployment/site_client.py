"""What a site does with a request of the server, in a process that stays: it has torch and the data."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

import torch
from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.algorithm import AnyAlgorithm, messages_of
from fedfomo.core.client import FederationInfo
from fedfomo.core.client_round import ClientOutcome, load_memory, pack_memory, split_memory
from fedfomo.core.data import ClientData
from fedfomo.core.device import resolve_device
from fedfomo.core.local_training import LocalTrainer, Sgd
from fedfomo.core.messages import MessageError, Parameters
from fedfomo.core.model import Model
from fedfomo.deployment.allowed_methods import make_method
from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.privacy_ledger import SitePrivacy
from fedfomo.deployment.protocol import (
    ECHOED,
    Envelope,
    Header,
    below,
    digest_of,
    part_of,
    read_message,
    require_header,
)
from fedfomo.deployment.settings import (
    DATA_VARIABLE,
    DEVICE_VARIABLE,
    SITE_VARIABLE,
    THREADS_VARIABLE,
    WORKER_VARIABLE,
    SiteFolder,
    check_experiment,
)
from fedfomo.deployment.site_policy import read_policy
from fedfomo.deployment.site_records import keep_model, keep_training, note_scores, progress, score_to_dict
from fedfomo.deployment.site_report import conclude
from fedfomo.deployment.site_state import SiteMemory
from fedfomo.deployment.site_task import Task
from fedfomo.deployment.subprocesses import LARGEST_LOG, ends_in_one_line
from fedfomo.deployment.user_model import UserModel, layout_digest, load_model, load_own_data
from fedfomo.deployment.worker_ipc import receive
from fedfomo.errors import InputError, require
from fedfomo.simulation.problem import check_trainer, private_part

log = logging.getLogger(__name__)

Tell = Callable[[str], None]


class LostError(InputError):
    """The site does not know the common initial model, and has to be told."""


class SiteClient:
    """Where a site works: its files, and its data once they are read."""

    def __init__(self, site: SiteFolder, data: Path | None, tell: Tell, device: str = "cpu") -> None:
        self._device = resolve_device(device)
        self._site = site
        self._folder = data
        self._tell = tell
        self._memory = SiteMemory(site.memory)
        self._data: tuple[int, ClientData] | None = None  # as a seed splits them
        self._loaded: _Loaded | None = None

    def handle(self, content: bytes, until: float) -> bytes:
        """Do what a request says and return the answer; what cannot be done, or in time, is answered with a fault."""
        header: Header = {}
        try:
            request = Envelope.read(content)
            header = {name: request.header.get(name) for name in ECHOED}
            require_header(request.header, {"federation": self._site.card().federation})
            with _hide_details("its policy"):
                policy = read_policy(self._site)  # read for every request: the site may change its mind
            policy.check(request.header, datetime.now())
            self._enter(request.header.get("experiment"))
            with self._memory.locked():
                fault = self._memory.validate(request.header["attempt"], request.header["round"])
                require(fault is None, str(fault))
                # A request may have waited for the one before it: for a closed round nothing is trained, nor paid.
                require(time.time() < until, f"round {request.header['round']} is over")
                answer = self._answer(request, policy.report_scores)
            return _pack_and_log(Envelope({**answer.header, **header}, answer.tensors), request.header["bits"])
        except (MessageError, InputError) as error:
            log.warning("the request cannot be carried out: %s", error)
            return _pack_and_log(Envelope({**header, "fault": str(error), "is_lost": isinstance(error, LostError)}, {}))
        except Exception as error:
            # Whatever the site's own code raises is logged in full here, and by its kind alone to others.
            log.exception("the request failed")
            fault = f"{type(error).__name__} at the site; its log has the rest"
            return _pack_and_log(Envelope({**header, "fault": fault}, {}))

    def _enter(self, experiment: str | None) -> None:
        """Turn to what is kept of an experiment: each has a folder of its own, but for the first."""
        if experiment is not None:
            check_experiment(experiment)
        site = self._site.of(experiment or "")
        if site.experiment != self._site.experiment:
            site.place.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._site, self._memory = site, SiteMemory(site.memory)
        site.note_latest()

    def _answer(self, request: Envelope, reports_scores: bool) -> Envelope:
        """Give the answer that the same request had before, under the same protection, or work it out."""
        with _hide_details("its privacy settings, or its ledger,"):
            privacy = SitePrivacy(self._site)  # read for every request, likewise
        reports = reports_scores and not privacy.is_on
        name = f"{_name(request)} {'protected' if privacy.is_on else 'open' if reports else 'without scores'}"
        known = self._memory.answer_to(request.header["round"], name)
        return known or self._play(request, name, privacy, reports)

    def _play(self, request: Envelope, name: str, privacy: SitePrivacy, reports: bool) -> Envelope:
        task = self._understand(request)
        outcome = self._run(task, privacy)
        if outcome.personalised is not None:
            keep_model(self._site, task, outcome)
        keep_training(self._site, task)
        # Scores on test records are exact: those of a site with privacy stay there.
        scores = (outcome.score_after_update, outcome.score_after_training) if reports else (None, None)
        after_update, after_training = (score and score_to_dict(score) for score in scores)
        upload = messages.pack(outcome.upload) if outcome.has_upload else None
        header = {"after_update": after_update, "after_training": after_training, "uploads": upload is not None}
        answer = Envelope(header, below("upload", upload or {}))
        if task.trains:
            self._memory.keep(request.header["round"], pack_memory(outcome), name, answer)
        note_scores(self._site, task, outcome, answer.tensors)
        self._tell(progress(task, outcome))
        if not task.trains:
            self._conclude()
        return answer

    def _conclude(self) -> None:
        """Write the report if it is due; the update is done, and stays so, if the report cannot be written."""
        try:
            sentence = conclude(self._site)
        except Exception as error:
            log.exception("the report cannot be written")
            sentence = f"the report cannot be written ({type(error).__name__}): site.log says why"
        if sentence is not None:
            self._tell(sentence)

    def _run(self, task: Task, privacy: SitePrivacy) -> ClientOutcome:
        """Do what was asked; the queries that takes are in the site's ledger when this returns."""
        if not privacy.is_on:
            privacy.note_unprotected(task.header["round"])
            return task.run(task.client())
        with _hide_details("its privacy settings, or its ledger,"):
            engine = privacy.engine(private_part(task.trainer), task.header["rounds"], task.model, task.data)
        with privacy.account(engine) as tracker:
            outcome = task.run(task.private_client(engine, tracker))
        if outcome.exceeds_budget:
            log.warning("the privacy budget is spent: nothing of this round leaves the site")
        return outcome

    def _understand(self, request: Envelope) -> Task:
        header = request.header
        loaded = self._load(header)
        own, algorithm = loaded.own, loaded.algorithm
        if layout_digest(own.model) != header["layout"]:
            raise InputError("this site's model.py builds another network than the server's: use the same file")
        initial = self._initial(request, len(own.initial))
        start = FederationInfo(initial, own.model.layout, header["num_clients"], header["rounds"])
        declared = messages_of(algorithm)
        download = read_message(declared.download, part_of(request.tensors, "download"), header["limit"])
        fault = messages.validate(declared.download, download, len(initial), header["num_clients"])
        if fault is not None:
            raise MessageError(f"the download is refused: {fault}")
        packed = self._memory.before(header["round"])
        memory = load_memory(algorithm, start, packed)
        trainer = loaded.trainer or Sgd(**header["training"])
        local = split_memory(packed or {})[1]
        data = self._read_data(header["seed"], own)
        return Task(header, algorithm, start, loaded.model, data, download, memory, trainer, local)

    def _read_data(self, seed: int, own: UserModel) -> ClientData:
        """Read the site's data once for all requests of a seed, which decides on how they are split."""
        if self._data is None or self._data[0] != seed:
            self._data = None  # not twice in memory
            with _hide_details("its data"):
                self._data = seed, load_own_data(self._site.data, self._folder, self._site.card().name, seed, own)
        return self._data[1]

    def _load(self, header: Header) -> _Loaded:
        """Build the network and the method, or keep those of the last request: they change with `model.py` alone."""
        path = self._site.model
        code = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
        asked = [header[name] for name in ("seed", "channels_last", "method", "options")]
        origin = json.dumps([code, *asked])
        if self._loaded is None or self._loaded.origin != origin:
            algorithm = make_method(header["method"], header["options"])
            own = load_model(path, header["seed"], header["channels_last"], self._device).split(algorithm)
            model = own.model.rebuilt(algorithm.network) if algorithm.wraps_network else own.model
            if own.trainer is not None:
                check_trainer(own.trainer, algorithm, model)
            self._loaded = _Loaded(origin, own, algorithm, model, own.trainer)
        return self._loaded

    def _initial(self, request: Envelope, size: int) -> Tensor:
        sent = part_of(request.tensors, "initial")
        if sent:
            self._memory.keep_initial(sent)
        known = sent or self._memory.initial()
        if known is None:
            raise LostError("this site has no memory of the federation")
        initial: Tensor = read_message(Parameters, {"": known["theta"]}, request.header["limit"])
        fault = messages.validate(Parameters, initial, size, 1)
        if fault is not None:
            raise MessageError(f"the initial model is refused: {fault}")
        return initial


@dataclass(frozen=True)
class _Loaded:
    """What requests have in common."""

    origin: str  # the code and the settings that all of it was made from
    own: UserModel
    algorithm: AnyAlgorithm
    model: Model  # the network that the method trains: the user's, or one built around it
    trainer: LocalTrainer | None  # that of model.py


def _pack_and_log(answer: Envelope, bits: int = 32) -> bytes:
    """Pack an answer, and write into the site's log what is about to leave."""
    content, header = answer.to_bytes(bits), answer.header
    parts = [name.removeprefix("upload/") for name in sorted(answer.tensors)]
    parts += [f"score {point}" for point in ("after_update", "after_training") if header.get(point)]
    parts += ["fault"] if "fault" in header else []
    parts_sent = ", ".join(parts) or "nothing but word that it is done"
    log.info("round %r, %r: %d bytes leave: %s", header.get("round"), header.get("kind"), len(content), parts_sent)
    return content


@contextmanager
def _hide_details(what: str) -> Generator[None]:
    """Tell the site's log what is wrong with something of its own; others hear only that something is."""
    try:
        yield
    except InputError as error:
        log.warning("%s", error)
        raise InputError(f"{what} cannot be used; the site's log says why") from error


def _name(request: Envelope) -> str:
    """Name a request by what it asks: not by its attempt, or its peers, nor by whether it brings the initial model.

    Asked again after a crash, a site has then the answer ready.
    """
    tensors = {name: digest_of(tensor) for name, tensor in request.tensors.items() if name.startswith("download/")}
    asked = sorted({**request.header, "attempt": 0, "peers": 0}.items()), sorted(tensors.items())
    return hashlib.sha256(repr(asked).encode()).hexdigest()


class Worker:
    """Decrypts requests, does what they say, and encrypts the answers."""

    def __init__(self, site: SiteFolder, data: Path | None, tell: Tell = log.info, device: str = "cpu") -> None:
        self._server = site.card().server_seal
        self._cipher = MessageCipher.read(site.seal)
        self._client = SiteClient(site, data, tell, device)

    @classmethod
    def here(cls, tell: Tell = log.info) -> Worker:
        """Return the worker of the site that the environment names."""
        site = SiteFolder(Path(os.environ[SITE_VARIABLE]))
        data = os.environ.get(DATA_VARIABLE)
        torch.set_num_threads(int(os.environ.get(THREADS_VARIABLE, "1")))
        form = "%(asctime)s %(levelname)s %(message)s"
        log_file = RotatingFileHandler(site.path / "site.log", maxBytes=LARGEST_LOG, backupCount=3, delay=True)
        logging.basicConfig(handlers=[log_file], level=logging.INFO, format=form)
        return cls(site, Path(data) if data else None, tell, os.environ.get(DEVICE_VARIABLE, "cpu"))

    def handle(self, encrypted: bytes, until: float = math.inf) -> bytes:
        """Do what an encrypted request says and return the encrypted answer, if it is still wanted."""
        request = self._cipher.decrypt(self._server, encrypted, Purpose.REQUEST)
        return self._cipher.encrypt(self._server, self._client.handle(request, until), Purpose.ANSWER)


if __name__ == "__main__":
    with ends_in_one_line():
        receive(Path(os.environ[WORKER_VARIABLE]), Worker.here().handle)
