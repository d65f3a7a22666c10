"""Registered sites that do whatever their keys let them, on a real SuperLink: others go on as if they were silent."""

from __future__ import annotations

import json
import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
import torch
from flwr.app import Array, Message
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from safetensors.torch import load_file
from torch import Tensor

from federations import same
from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.fleet_connection import FleetConnection
from fedfomo.deployment.flower_records import CONTENT, ONE_PIECE, content_of, record_of
from fedfomo.deployment.protocol import Envelope
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.settings import FederationConfig, FederationFolder, SiteFolder
from real_server import ThreadedFederation, threaded

pytestmark = pytest.mark.deployment

DEADLINE = 8
HONEST = ("leeds", "turin")
SITES = 8
SETTINGS = ("--rounds", "2", "--max-sites", str(SITES), "--epochs", "1", "--deadline", str(DEADLINE))


class _Silent(FleetConnection):
    """Takes requests and says nothing: what the others compute then is the measure of all the rest."""

    def send(self, reply: Any, seconds: float) -> None:
        pass


class _Withholding(FleetConnection):
    """Announces an answer and keeps one piece of it."""

    def push(self, run: int, session: str, pieces: dict[str, Any], wanted: set[str]) -> None:
        super().push(run, session, pieces, wanted - {sorted(wanted)[0]})


class _Dripping(FleetConnection):
    """Sends a piece now and then, which keeps the upload open in Flower's eyes."""

    stop: ClassVar[threading.Event] = threading.Event()

    def push(self, run: int, session: str, pieces: dict[str, Any], wanted: set[str]) -> None:
        threading.Thread(target=self._drip, args=(run, session, pieces, wanted), daemon=True).start()

    def _drip(self, run: int, session: str, pieces: dict[str, Any], wanted: set[str]) -> None:
        for name in sorted(wanted):
            self.stop.wait(0.8 * DEADLINE)
            with suppress(ObjectPushError, httpx.HTTPError, RuntimeError):  # once the round is over, or the run
                if not self.stop.is_set():
                    super().push(run, session, dict(pieces), {name})


class _Dying(FleetConnection):
    """Dies in the midst of its first upload: nothing more is heard of it, no heartbeat either."""

    def push(self, run: int, session: str, pieces: dict[str, Any], wanted: set[str]) -> None:
        super().push(run, session, pieces, set(sorted(wanted)[1:]))
        self._heartbeat.stop()
        threading.Event().wait(60)


class _Overfilling(FleetConnection):
    """Announces an answer of very many pieces."""

    def announce(self, reply: Any, tree: Any, seconds: float) -> tuple[str, set[str]]:
        for number in range(200):
            tree.children.add(object_id=f"{number:064x}")
        return super().announce(reply, tree, seconds)


class _Huge(FleetConnection):
    """Answers with one piece of 60 MB, of which no word is true."""

    def send(self, reply: Any, seconds: float) -> None:
        reply.content.config_records[CONTENT][CONTENT] = b"x" * 60_000_000
        super().send(reply, seconds)


class _Long(FleetConnection):
    """Answers with 300 MB, in pieces as honest sites send them."""

    def send(self, reply: Any, seconds: float) -> None:
        reply.content = record_of(os.urandom(300_000_000))
        super().send(reply, seconds)


class _Unfolding(FleetConnection):
    """Answers with a megabyte, and says that it is to be repeated 4,000 times."""

    def send(self, reply: Any, seconds: float) -> None:
        reply.content = record_of(bytes(ONE_PIECE + 1))
        chunks = Array("uint8", (2**20,), "", bytes(2**20)).slice_array()
        reply.content.array_records[CONTENT][CONTENT].__dict__["_chunks"] = chunks * 4000
        super().send(reply, seconds)


class _Forging(FleetConnection):
    """Says what it likes in the form of an answer, encrypted by its own key."""

    def send(self, reply: Any, seconds: float) -> None:
        cipher, server = MessageCipher.read(self._site.seal), self._card.server_seal
        answer = Envelope.read(cipher.decrypt(server, content_of(reply.content), Purpose.ANSWER))
        said = self.forged(answer)
        if said is not None:
            reply.content.config_records[CONTENT][CONTENT] = cipher.encrypt(server, said, Purpose.ANSWER)
            super().send(reply, seconds)

    def forged(self, answer: Envelope) -> bytes | None:
        """Return what it says in place of an answer."""
        raise NotImplementedError


class _Lying(_Forging):
    """Tells of scores that no test records can give."""

    def forged(self, answer: Envelope) -> bytes:
        score = {"loss": 0.0, "metric": 2.0, "num_examples": 100}
        return Envelope({**answer.header, "after_update": score}, answer.tensors).to_bytes()


class _NotANumber(_Forging):
    """Uploads a model that would spoil whatever it is mixed with."""

    def forged(self, answer: Envelope) -> bytes:
        def spoilt(tensor: Tensor) -> Tensor:
            return torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else tensor

        tensors = {name: spoilt(tensor) for name, tensor in answer.tensors.items()}
        return Envelope({**answer.header, "after_update": None, "after_training": None}, tensors).to_bytes()


class _Misnaming(_Forging):
    """Gives its tensors names that lead elsewhere, or that a terminal would obey."""

    def forged(self, answer: Envelope) -> bytes:
        named = {f"upload/../../\x1b[2J{name}": tensor for name, tensor in answer.tensors.items()}
        return Envelope(answer.header, {**answer.tensors, **named}).to_bytes()


class _Replaying(_Forging):
    """Keeps its answer of the first round back, and gives it in every later one."""

    kept = b""

    def forged(self, answer: Envelope) -> bytes | None:
        if answer.header["round"] == 0:
            self.kept = answer.to_bytes()
            return None
        return self.kept


class _Impersonating(_Forging):
    """Answers for another site."""

    def forged(self, answer: Envelope) -> bytes:
        return Envelope({**answer.header, "slot": 0}, answer.tensors).to_bytes()


class _Pickle:
    """What does something as soon as somebody unpickles it."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self._trace,)


class _Coding(_Forging):
    """Sends code in place of an answer."""

    def forged(self, answer: Envelope) -> bytes:
        return pickle.dumps(_Pickle(self._site.path.parent / "code-was-run"))


class _Flooding(FleetConnection):
    """Asks, announces and uploads without end, and every answer is rubbish."""

    def receive(self) -> Message | None:
        self._asked = super().receive()
        return self._asked

    def send(self, reply: Any, seconds: float) -> None:
        assert self._asked is not None
        for number in range(300):
            rubbish = record_of(number.to_bytes(4, "big") * 50_000)
            with suppress(ObjectPushError):
                super().send(Message(rubbish, reply_to=self._asked), seconds)
            self._is_heard()


class _Stranger(FleetConnection):
    """Comes with the keys and the authority of another federation."""

    def __init__(self, site: SiteFolder) -> None:
        other = FederationFolder(site.path.parent / f"federation of {site.path.name}")
        if not other.path.exists():
            provision(other, ["leeds", "turin"], FederationConfig(max_sites=2))
        stranger = SiteFolder(other.sites / "leeds")
        for known, unknown in ((site.key, stranger.key), (site.ca, stranger.ca)):
            known.write_bytes(unknown.read_bytes())
        super().__init__(site)


class _Unregistered(_Stranger):
    """Comes with the right authority, and keys of another federation."""

    def __init__(self, site: SiteFolder) -> None:
        authority = site.ca.read_bytes()
        super().__init__(site)
        site.ca.write_bytes(authority)
        FleetConnection.__init__(self, site)


Models = dict[str, dict[str, Tensor]]
Kinds = dict[str, type[FleetConnection]]


def _play(place: Path, kinds: Kinds) -> tuple[ThreadedFederation, Models]:
    """Play two rounds of two honest sites and six others, silent but for some; return the models of the honest ones."""
    torch.set_num_threads(1)
    others = kinds | {f"silent{number}": _Silent for number in range(SITES - len(HONEST) - len(kinds))}
    names = (*HONEST, *others)
    with threaded(place, *SETTINGS, "--startup-timeout", "30", sites=names) as made:
        slots = dict(zip(names, range(SITES), strict=True))  # always the same, so that models can be compared
        made.folder.write_registry("f" * 32, [replace(site, slot=slots[site.name]) for site in made.all()])
        for name in names:
            made.site(name).write_card(replace(made.site(name).card(), federation="f" * 32))
        made.start_server()
        made.join({**dict.fromkeys(HONEST, FleetConnection), **others})
        made.wait()
        models = {name: load_file(made.site(name).models / "personalised.safetensors") for name in HONEST}
    for played in made.rounds():
        used = set(played["answered"]) - {int(slot) for slot in played["refused"]}
        assert used == {slots[name] for name in HONEST}, made.told()
    assert "\x1b[2J" not in made.told()
    return made, models


def _faults(made: ThreadedFederation, name: str) -> list[str]:
    """Return what was wrong with a site's answer in every round; nothing where it was not asked."""
    (slot,) = [str(site.slot) for site in made.all() if site.name == name]
    return [{**played["faults"], **played["refused"]}.get(slot, "") for played in made.rounds()]


SILENT = f"no answer within {DEADLINE} s"


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> tuple[ThreadedFederation, Models]:
    """Play it with silent sites beside the honest ones: the measure of all the rest."""
    made, models = _play(tmp_path_factory.mktemp("silent"), {})
    assert _faults(made, "silent0") == [SILENT] * 2
    log = (made.folder.server / "flower.log").read_text()
    assert "Fleet.PushMessages" in log
    assert "Fleet.GetFab" not in log  # no site asks for code
    return made, models


@pytest.fixture
def without(silent: tuple[ThreadedFederation, Models]) -> Models:
    """Return the models of the honest sites when all others are silent."""
    return silent[1]


def test_who_keeps_an_answer_from_arriving_whole_costs_nobody_anything(tmp_path: Path, without: Models) -> None:
    kinds: Kinds = {"withholding": _Withholding, "dripping": _Dripping, "dying": _Dying}
    try:
        made, models = _play(tmp_path, kinds)
    finally:
        _Dripping.stop.set()
    for name in kinds:
        assert _faults(made, name)[0].startswith("its answer was announced, and"), made.rounds()
    assert DEADLINE <= json.loads(made.folder.status.read_bytes())["seconds"] <= DEADLINE + 7
    assert same(models, without)


def test_who_answers_with_too_much_costs_nobody_anything(tmp_path: Path, without: Models) -> None:
    faults = {
        "overfilling": (_Overfilling, "pieces, more than"),
        "huge": (_Huge, "a piece of it has 60,000,063 bytes, more than"),
        "unfolding": (_Unfolding, "it repeats a piece of itself"),
        "flooding": (_Flooding, "it was not encrypted by its sender for this receiver"),
    }
    made, models = _play(tmp_path, {name: kind for name, (kind, _) in faults.items()})
    for name, (_, fault) in faults.items():
        assert fault in _faults(made, name)[0], made.rounds()
    assert same(models, without)


def test_who_forges_an_answer_costs_nobody_anything(tmp_path: Path, without: Models) -> None:
    faults = {
        "lying": (_Lying, "right on 2 of its test examples"),
        "no-number": (_NotANumber, "finite"),
        "misnaming": (_Misnaming, "../.."),
        "impersonating": (_Impersonating, "its slot is 0, not 5"),
        "coding": (_Coding, "it is no envelope"),
        "replaying": (_Replaying, SILENT),
    }
    made, models = _play(tmp_path, {name: kind for name, (kind, _) in faults.items()})
    for name, (_, fault) in faults.items():
        assert fault in _faults(made, name)[0], made.rounds()
    assert _faults(made, "replaying")[1] == "its round is 0, not 1"
    assert not (made.folder.sites / "code-was-run").exists()
    assert same(models, without)


def test_who_comes_with_other_keys_is_not_let_in_and_costs_nobody_anything(tmp_path: Path, without: Models) -> None:
    said = {
        "stranger": (_Stranger, "shows no certificate that ca.crt vouches for"),
        "unregistered": (_Unregistered, "the server does not know this site's key"),
    }
    made, models = _play(tmp_path, {name: kind for name, (kind, _) in said.items()})
    for name, (_, words) in said.items():
        assert any(words in told for told in made.nodes[name].said), made.nodes[name].said
        assert _faults(made, name) == ["", ""]
    assert same(models, without)


def test_an_answer_of_300_megabytes_is_not_read_and_costs_the_superlink_less_than_that(
    tmp_path: Path, silent: tuple[ThreadedFederation, Models]
) -> None:
    """The SuperLink holds what comes until the server looks, and no more after that."""
    made, models = _play(tmp_path, {"long": _Long})
    before, link, app = silent[0].peaks, "flower-superlink", "flwr-serverapp"
    assert before[link] > 100
    assert made.peaks[link] < before[link] + 200
    assert made.peaks[app] < before[app] + 20
    assert same(models, silent[1])
