"""What a site does when an order of the server reaches it."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from fedfomo import wire
from fedfomo.algorithms import make_algorithm
from fedfomo.client import Client, Start
from fedfomo.errors import InputError, require
from fedfomo.examples import ClientData
from fedfomo.federation import AnyAlgorithm, OwnNetwork, messages_of
from fedfomo.flower.checks import ECHOED, below, part_of, read_message, require_header
from fedfomo.flower.own_code import layout_digest, load_model, load_own_data
from fedfomo.flower.parcels import Header, Parcel, digest_of
from fedfomo.flower.settings import SiteFolder
from fedfomo.flower.site_memory import SiteMemory
from fedfomo.model import Model, Score
from fedfomo.simulation.client_side import contributes
from fedfomo.simulation.tensors import write_atomically
from fedfomo.training import Sgd
from fedfomo.wire import Parameters, WireError

log = logging.getLogger(__name__)


class LostError(InputError):
    """The site does not know the common initial model, and has to be told."""


class Desk:
    """Where a site works: its files, and its data once they are read."""

    def __init__(self, site: SiteFolder, data: Path | None) -> None:
        self._site = site
        self._folder = data
        self._memory = SiteMemory(site.memory)
        self._data: ClientData | None = None

    def carry_out(self, content: bytes) -> bytes:
        """Do what an order says and return the answer; what cannot be done is answered with a fault."""
        header: Header = {}
        try:
            order = Parcel.read(content)
            header = {name: order.header.get(name) for name in ECHOED}
            require_header(order.header, {"federation": self._site.card().federation})
            with self._memory.locked():
                fault = self._memory.fault_of(order.header["attempt"], order.header["round"])
                require(fault is None, str(fault))
                name = _name(order)
                answer = self._memory.answer_to(order.header["round"], name) or self._play(order, name)
            return Parcel({**answer.header, **header}, answer.tensors).to_bytes(order.header["bits"])
        except (WireError, InputError) as error:
            log.warning("the order cannot be carried out: %s", error)
            return Parcel({**header, "fault": str(error), "is_lost": isinstance(error, LostError)}, {}).to_bytes()
        except Exception as error:
            # Whatever the site's own code raises is told in full here, and by its kind alone to others.
            log.exception("the order failed")
            fault = f"{type(error).__name__} at the site; its log has the rest"
            return Parcel({**header, "fault": fault}, {}).to_bytes()

    def _play(self, order: Parcel, name: str) -> Parcel:
        task = self._understand(order)
        client, algorithm = task.client(), task.algorithm
        personal = algorithm.personalise(client, task.download, task.memory)
        after_update = task.model.score(personal.model, task.data.test)
        header: Header = {"after_update": asdict(after_update), "after_training": None, "uploads": False}
        self._keep_model(task, personal.model, after_update)
        if order.header["kind"] == "finish":
            return Parcel(header, {})
        upload: wire.Flat = {}
        remembered = personal.memory
        if len(task.data.train) > 0:
            trained = algorithm.train(client, task.download, personal.memory)
            remembered = trained.memory
            header["after_training"] = asdict(task.model.score(trained.model, task.data.test))
            header["uploads"] = contributes(task.data)  # who cannot, keeps what it trained to itself
            upload = wire.pack(trained.upload) if header["uploads"] else upload
        answer = Parcel(header, below("upload", upload))
        self._memory.keep(order.header["round"], wire.pack(remembered), name, answer)
        return answer

    def _understand(self, order: Parcel) -> _Task:
        header = order.header
        own = load_model(self._site.model, header["seed"], header["channels_last"])
        if layout_digest(own.model) != header["layout"]:
            raise InputError("this site's model.py builds another network than the server's: use the same file")
        algorithm = make_algorithm(header["method"], header["options"])
        model = own.model.rebuilt(algorithm.network) if isinstance(algorithm, OwnNetwork) else own.model
        initial = self._initial(order, len(own.initial))
        start = Start(initial, own.model.layout, header["num_clients"], header["rounds"])
        messages = messages_of(algorithm)
        download = read_message(messages.download, part_of(order.tensors, "download"), header["limit"])
        fault = wire.fault_of(messages.download, download, len(initial), header["num_clients"])
        if fault is not None:
            raise WireError(f"the download is refused: {fault}")
        before = self._memory.before(header["round"])
        remembered = algorithm.start_client(start) if before is None else wire.unpack(messages.memory, before)
        if self._data is None:
            self._data = load_own_data(self._site.data, self._folder, self._site.card().name, header["seed"], own)
        return _Task(header, algorithm, start, model, self._data, download, remembered)

    def _initial(self, order: Parcel, size: int) -> Tensor:
        sent = part_of(order.tensors, "initial")
        if sent:
            self._memory.keep_initial(sent)
        known = sent or self._memory.initial()
        if known is None:
            raise LostError("this site has no memory of the federation")
        initial: Tensor = read_message(Parameters, {"": known["theta"]}, order.header["limit"])
        fault = wire.fault_of(Parameters, initial, size, 1)
        if fault is not None:
            raise WireError(f"the initial model is refused: {fault}")
        return initial

    def _keep_model(self, task: _Task, theta: Tensor, score: Score) -> None:
        """Put down the model that the site would use now, ready for `load_state_dict`."""
        models = self._site.models
        models.mkdir(mode=0o700, exist_ok=True)
        state = {name: tensor.contiguous() for name, tensor in task.model.state_dict(theta).items()}
        write_atomically(models / "personalised.safetensors", save(state))
        facts = {"round": task.header["round"], "rounds": task.header["rounds"], "score": asdict(score)}
        write_atomically(models / "personalised.json", json.dumps(facts, indent=1).encode())


@dataclass(frozen=True)
class _Task:
    """An order, understood."""

    header: Header
    algorithm: AnyAlgorithm
    start: Start
    model: Model
    data: ClientData
    download: Any
    memory: Any

    def client(self) -> Client:
        """Return the client that the method meets; the one place that decides how it trains and judges."""
        header = self.header
        trainer = Sgd(**header["training"])
        return Client(header["slot"], self.data, self.start, self.model, trainer, header["round"], header["seed"])


def _name(order: Parcel) -> str:
    """Name an order by what it asks: not by its attempt, nor by whether it brings the initial model.

    Asked again after a crash, a site has then the answer ready.
    """
    tensors = {name: digest_of(tensor) for name, tensor in order.tensors.items() if name.startswith("download/")}
    asked = sorted({**order.header, "attempt": 0}.items()), sorted(tensors.items())
    return hashlib.sha256(repr(asked).encode()).hexdigest()
