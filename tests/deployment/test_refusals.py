"""What is broken, forged, late or lost harms nobody else."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from flwr.app import Error, Message

from federations import same, simulated
from fedfomo.cli import deploy
from fedfomo.core.local_training import Sgd, TrainingJob
from fedfomo.core.model import Model
from fedfomo.deployment.audit_log import examine
from fedfomo.deployment.encryption import DecryptionError, MessageCipher, Purpose
from fedfomo.deployment.protocol import Envelope, Header
from fedfomo.deployment.provisioning import add_site
from fedfomo.deployment.server_run import serve
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.deployment.site_state import SiteMemory
from fedfomo.deployment.status import sentences
from fedfomo.io import read_lines
from fedfomo.runs.config_io import write_toml
from in_memory_transport import MODEL, Loopback, equip, honest, make_federation, models_of, run_federation
from zip_bombs import odd_tensors

DEAD = Error(5, "the node is gone")
WEIGHTS = 600 * 2 + 600 + 3 * 600 + 3


def _rounds(folder: FederationFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.server / "run" / "rounds.jsonl").read_text().splitlines()]


def _slot(folder: FederationFolder, name: str) -> int:
    return next(site.slot for site in folder.registry() if site.name == name)


def _read_by_the_server(folder: FederationFolder, site: MessageCipher, answer: bytes) -> Envelope:
    server = MessageCipher.read(folder.server / "sealing.key")
    return Envelope.read(server.decrypt(site.public_key, answer, Purpose.ANSWER))


def _forging(folder: FederationFolder, forge: Callable[[Envelope], Envelope | bytes]) -> Any:
    """Let Lyon's answers be replaced, encrypted with Lyon's own key."""
    site = SiteFolder(folder.sites / "lyon")
    sealer, server = MessageCipher.read(site.seal), site.card().server_seal

    def change(name: str, number: int, order: bytes, answer: Callable[[bytes], bytes]) -> Any:
        if name != "lyon":
            return answer(order)
        true = answer(order)
        forged = forge(_read_by_the_server(folder, sealer, true))
        return sealer.encrypt(server, forged if isinstance(forged, bytes) else forged.to_bytes(), Purpose.ANSWER)

    return change


def _with(**tensors: Any) -> Callable[[Envelope], Envelope]:
    return lambda envelope: Envelope(envelope.header, {**envelope.tensors, **tensors}) if envelope.tensors else envelope


def _model(**changes: float) -> torch.Tensor:
    model = torch.zeros(WEIGHTS)
    for place, value in changes.items():
        model[int(place.removeprefix("at_"))] = value
    return model


SCORE = {"loss": 0.5, "metric": 0.75, "num_examples": 4}


def _headed(header: Header) -> bytes:
    """Return the beginning of an envelope, after which its tensors come."""
    words = json.dumps(header).encode()
    return len(words).to_bytes(4, "little") + words


FORGERIES: dict[str, tuple[Callable[[Envelope], Any], str]] = {
    "one NaN": (_with(**{"upload/model": _model(at_7=float("nan"))}), "not finite"),
    "minus infinity on one bias": (_with(**{"upload/model": _model(at_1200=float("-inf"))}), "not finite|norm"),
    "transposed": (_with(**{"upload/model": _model().view(1, -1)}), r"not parameters"),
    "too short": (_with(**{"upload/model": _model()[:-1]}), "coordinates"),
    "ten times too long": (_with(**{"upload/model": torch.zeros(10 * WEIGHTS)}), "numbers, more than|coordinates"),
    "float64": (_with(**{"upload/model": _model().double()}), "not parameters"),
    "half": (_with(**{"upload/model": _model().half()}), "not parameters"),
    "integers": (_with(**{"upload/model": _model().long()}), "not parameters"),
    "a field too many": (_with(**{"upload/more": torch.zeros(3)}), "unexpected field"),
    "a norm of a million": (_with(**{"upload/model": _model(at_0=1e6)}), "norm"),
    "infinite weights": (_with(**{"upload/findings.increments": torch.full((3,), torch.inf).double()}), "not finite"),
    "strangers judged": (_with(**{"upload/findings.ids": torch.tensor([0, 1, 99])}), "does not exist"),
    "a tensor beside the upload": (_with(more=torch.zeros(3)), "unexpected tensor 'more'"),
    "a download": (_with(**{"download/models.0": _model()}), "unexpected tensor 'download"),
    "a part of nothing": (_with(**{"upload/model:low": torch.zeros(4)}), "no part of a quantised form"),
    "a part that does not exist": (
        _with(**{"junk:x": torch.zeros(4, dtype=torch.uint8)}),
        "no part of a quantised form",
    ),
    "more numbers than it may hold": (
        _with(**{"upload/model:levels": torch.zeros(19 * WEIGHTS, dtype=torch.uint8)}),
        "it holds 7.,... numbers, more than 7,226",
    ),
    "more bytes than it may have": (
        _with(junk=torch.zeros(5_000_000, dtype=torch.uint8)),
        r"it has 5,...,... bytes, more than 4,057,808",
    ),
    "a model that is not announced": (
        lambda envelope: Envelope({**envelope.header, "uploads": False}, {"upload/model": _model()}),
        "unexpected tensor",
    ),
    "another round's": (lambda envelope: Envelope({**envelope.header, "round": 7}, envelope.tensors), "its round is 7"),
    "another site's": (lambda envelope: Envelope({**envelope.header, "slot": 9}, envelope.tensors), "its slot is 9"),
    "another federation's": (
        lambda envelope: Envelope({**envelope.header, "federation": "x"}, envelope.tensors),
        "federation",
    ),
    "no score": (lambda envelope: Envelope({**envelope.header, "after_update": 3}, envelope.tensors), "no score"),
    "half a score": (
        lambda envelope: Envelope({**envelope.header, "after_update": {"loss": 1}}, envelope.tensors),
        "no score",
    ),
    "a score in words": (
        lambda envelope: Envelope(
            {**envelope.header, "after_training": {"loss": "x", "metric": 1.0, "num_examples": 1}}, envelope.tensors
        ),
        "no score",
    ),
    **{
        f"a score with {name}": (
            lambda envelope, odd=odd: Envelope({**envelope.header, "after_update": {**SCORE, **odd}}, envelope.tensors),
            "no score",
        )
        for name, odd in {
            "a number of 400 digits": {"metric": 10**400},
            "minus that": {"loss": -(10**400)},
            "infinity": {"loss": float("inf")},
            "fewer than no examples": {"num_examples": -1},
            "half an example": {"num_examples": 0.5},
            "too many examples": {"num_examples": 10**9 + 1},
            "truth": {"metric": True},
        }.items()
    },
    "an accuracy of a billion": (
        lambda envelope: Envelope({**envelope.header, "after_update": {**SCORE, "metric": 1e9}}, envelope.tensors),
        "right on 1e[+]09 of its test examples",
    ),
    "an accuracy below nothing": (
        lambda envelope: Envelope({**envelope.header, "after_training": {**SCORE, "metric": -0.5}}, envelope.tensors),
        "right on -0.5 of its test examples",
    ),
    "a loss beyond all bounds": (
        lambda envelope: Envelope({**envelope.header, "after_training": {**SCORE, "loss": 1e10}}, envelope.tensors),
        "no score",
    ),
    "a fault in numbers": (lambda envelope: Envelope({**envelope.header, "fault": 10**400}, {}), "is no text"),
    "a name of 10,000 letters": (_with(**{"upload/" + "x" * 10_000: torch.zeros(1)}), "^.{300}…$"),
    "brackets for a header": (lambda envelope: (100_000).to_bytes(4, "little") + b"[" * 100_000, "no envelope"),
    "weights that overflow": (
        _with(**{"upload/findings.increments": torch.full((3,), 1e308, dtype=torch.float64)}),
        "a weight beyond|its neighbour",
    ),
    "no envelope": (lambda envelope: b"nonsense", "no envelope"),
    "no word of uploads": (
        lambda envelope: Envelope({n: v for n, v in envelope.header.items() if n != "uploads"}, envelope.tensors),
        "whether it uploads",
    ),
    "a number of uploads": (
        lambda envelope: Envelope({**envelope.header, "uploads": 1}, envelope.tensors),
        "whether it uploads",
    ),
    "a header that lies about its length": (lambda whole: b"\xff\xff\xff\xff" + whole.to_bytes()[4:], "no envelope"),
    **{name: (lambda envelope, odd=odd: _headed(envelope.header) + odd, "no envelope") for name, odd in odd_tensors()},
}


@pytest.fixture(scope="module")
def without_lyon(tmp_path_factory: pytest.TempPathFactory) -> Callable[[FederationFolder], dict[str, Any]]:
    """Return what becomes of the others when Lyon is never heard of; it depends on slots only."""
    found: dict[tuple[int, ...], dict[str, Any]] = {}

    def compute(folder: FederationFolder) -> dict[str, Any]:
        slots = tuple(site.slot for site in folder.registry())
        if slots not in found:
            twin = make_federation(tmp_path_factory.mktemp("twin"))
            twin.write_registry(
                twin.identity(), [replace(site, slot=slot) for site, slot in zip(twin.registry(), slots, strict=True)]
            )
            models = run_federation(twin, lambda site, _, order, answer: DEAD if site == "lyon" else answer(order))
            found[slots] = {name: models[name] for name in ("leeds", "turin")}
        return found[slots]

    return compute


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_bad_upload_is_refused_and_changes_nothing(tmp_path: Path, forgery: str, without_lyon: Any) -> None:
    forge, reason = FORGERIES[forgery]
    folder = make_federation(tmp_path)
    models = run_federation(folder, _forging(folder, forge))
    assert same({name: models[name] for name in ("leeds", "turin")}, without_lyon(folder))
    slot = str(_slot(folder, "lyon"))
    for played in _rounds(folder):
        told = {**played["faults"], **played["refused"]}
        assert list(told) == [slot]
        assert re.search(reason, told[slot]), told


@pytest.mark.parametrize("raised", [ValueError("no JSON"), KeyError("RecordDict"), AttributeError("metadata")])
def test_a_message_that_flower_cannot_read_is_the_fault_of_its_sender_alone(
    tmp_path: Path, raised: Exception, without_lyon: Any
) -> None:
    folder = make_federation(tmp_path)
    models = run_federation(folder, lambda site, _, order, answer: raised if site == "lyon" else answer(order))
    assert same({name: models[name] for name in ("leeds", "turin")}, without_lyon(folder))
    fault = f"its reply cannot be read ({type(raised).__name__})"
    assert [played["faults"] for played in _rounds(folder)] == [{str(_slot(folder, "lyon")): fault}] * 2


def test_a_superlink_that_is_gone_is_nobodys_fault(tmp_path: Path) -> None:
    gone = httpx.ConnectError("refused")
    with pytest.raises(httpx.ConnectError):
        run_federation(make_federation(tmp_path), lambda *_: gone)


def test_what_another_site_encrypted_is_refused(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    grid = Loopback(folder)

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        return grid_answer(order) if site == "lyon" else answer(order)

    def grid_answer(order: bytes) -> bytes:
        sealer = MessageCipher.read(SiteFolder(folder.sites / "turin").seal)
        return sealer.encrypt(SiteFolder(folder.sites / "turin").card().server_seal, b"", Purpose.ANSWER)

    run_federation(folder, change)
    assert grid.orders == []
    assert all(
        "not encrypted by its sender" in played["faults"][str(_slot(folder, "lyon"))] for played in _rounds(folder)
    )


def test_an_order_that_comes_back_is_no_answer(tmp_path: Path, without_lyon: Any) -> None:
    folder = make_federation(tmp_path)
    models = run_federation(folder, lambda site, _, order, answer: order if site == "lyon" else answer(order))
    assert same({name: models[name] for name in ("leeds", "turin")}, without_lyon(folder))
    faults = [{str(_slot(folder, "lyon")): "it was not encrypted for the purpose 'answer'"}] * 2
    assert [played["faults"] for played in _rounds(folder)] == faults
    assert json.loads(folder.result.read_bytes())["without_last_update"] == ["lyon"]


def test_an_order_that_a_site_opens_and_sends_back_is_no_answer_either(tmp_path: Path, without_lyon: Any) -> None:
    folder = make_federation(tmp_path)
    site = SiteFolder(folder.sites / "lyon")
    sealer, server = MessageCipher.read(site.seal), site.card().server_seal

    def change(name: str, number: int, order: bytes, answer: Any) -> Any:
        if name != "lyon":
            return answer(order)
        return sealer.encrypt(server, sealer.decrypt(server, order, Purpose.REQUEST), Purpose.ANSWER)

    models = run_federation(folder, change)
    assert same({name: models[name] for name in ("leeds", "turin")}, without_lyon(folder))
    told = [played["faults"][str(_slot(folder, "lyon"))] for played in _rounds(folder)]
    assert "whether it uploads" in told[0]
    assert all("numbers, more than" in fault for fault in told[1:])  # orders bring several models, answers one


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("busy\ndelivery log: 12 lines, whole\r\x1b[2J\x9b\u202e", "busy�delivery log: 12 lines, whole��[2J��"),
        ("half a \ud800 pair", "half a � pair"),
        ("A" * 1_900_000, "A" * 300 + "…"),
    ],
)
def test_words_of_a_site_neither_steer_a_terminal_nor_fill_a_log(
    tmp_path: Path, fault: str, told: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_federation(tmp_path)
    run_federation(folder, _forging(folder, lambda envelope: Envelope({**envelope.header, "fault": fault}, {})))
    slot = str(_slot(folder, "lyon"))
    assert [played["faults"] for played in _rounds(folder)] == [{slot: told}] * 2
    assert f"lyon: {told}" in caplog.messages
    deploy.status([str(folder.path)])
    assert f"lyon: {told}" in capsys.readouterr().out.splitlines()


def test_a_model_whose_loss_is_beyond_all_numbers_is_told_as_undefined(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1)
    SiteFolder(folder.sites / "lyon").model.write_text(
        MODEL + "\n\ndef loss(outputs, labels):\n    return outputs.sum() * 0 + float('inf')\n"
    )
    run_federation(folder)
    slot = _slot(folder, "lyon")
    (played,) = _rounds(folder)
    assert slot in played["answered"]
    assert played["after_update"][str(slot)]["loss"] is None


def test_a_dead_node_is_told_by_the_message_it_did_not_answer(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    run_federation(folder, lambda site, _, order, answer: DEAD if site == "turin" else answer(order))
    assert [list(played["faults"]) for played in _rounds(folder)] == [[str(_slot(folder, "turin"))]] * 2


def test_an_answer_that_comes_late_is_never_used(tmp_path: Path, without_lyon: Any) -> None:
    """Lyon is silent in round 0 and gives its old answer in every later one."""
    kept: list[bytes] = []

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        if site != "lyon":
            return answer(order)
        kept.append(answer(order))
        return None if len(kept) == 1 else kept[0]

    folder = make_federation(tmp_path, deadline=0.5)
    models = run_federation(folder, change)
    assert same({name: models[name] for name in ("leeds", "turin")}, without_lyon(folder))
    first, second = ({**played["faults"]}[str(_slot(folder, "lyon"))] for played in _rounds(folder))
    assert "no answer within" in first
    assert "its round is 0, not 1" in second


def test_a_round_that_too_few_answer_is_played_again(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, min_clients=3, deadline=0.5)
    played: list[str] = []

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        played.append(site)
        return None if played.count("leeds") < 3 and site == "leeds" else answer(order)

    assert same(run_federation(folder, change), simulated(folder))
    assert played.count("turin") == 3 + 1 + 1  # the first round thrice, the second, the last update


class _SlowToSend(Loopback):
    """Takes longer to send all orders than a site has to answer one."""

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = super().push_messages(messages)
        time.sleep(0.3)
        return sent


def test_a_round_whose_orders_take_longer_to_send_than_the_deadline_is_complete(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, min_clients=3, deadline=0.4)
    serve(_SlowToSend(folder), folder)
    assert [len(played["answered"]) for played in _rounds(folder)] == [3, 3]
    assert same(models_of(folder), simulated(folder))


def test_who_is_silent_does_not_keep_others_from_being_heard_while_orders_are_sent(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, deadline=0.4)
    change: Any = lambda site, _, order, answer: None if site == "leeds" else answer(order)  # noqa: E731
    serve(_SlowToSend(folder, change), folder)
    assert [list(played["faults"].values()) for played in _rounds(folder)] == [["no answer within 0 s"]] * 2
    assert [len(played["answered"]) for played in _rounds(folder)] == [2, 2]


def test_status_tells_why_a_round_is_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_federation(tmp_path, rounds=1, min_clients=3)
    told: list[list[str]] = []

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        told.append(list(sentences(folder)))
        return DEAD if number <= 3 and site == "lyon" else answer(order)

    monkeypatch.setattr("time.sleep", lambda seconds: None)
    run_federation(folder, change)
    first = next(sentence for sentence in told[-4] if "rounds are complete" in sentence)
    why = r"0 of 1 rounds are complete; the next one is run again \(2 sites answered, 3 are needed\), last tried \d+ s"
    assert re.match(why, first), first
    assert "lyon: the node is gone (code 5)" in told[-4]
    assert any("1 of 1 rounds are complete, the last one" in sentence for sentence in sentences(folder))


def test_no_fewer_sites_are_asked_than_have_to_answer(tmp_path: Path) -> None:
    names = ("leeds", "turin", "lyon", "porto", "gent")
    folder = make_federation(tmp_path, names, participation=0.3, min_clients=2)  # ⌊0.3 · 5⌋ is 1
    run_federation(folder)
    assert [len(played["cohort"]) for played in _rounds(folder)] == [2, 2]
    assert all(played["answered"] == played["cohort"] for played in _rounds(folder))


def test_others_are_asked_in_place_of_a_site_that_keeps_failing(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, ("leeds", "turin", "lyon", "porto"), participation=0.5, min_clients=2)
    asked: list[str] = []

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        asked.append(site)
        return DEAD if site == asked[0] else answer(order)

    run_federation(folder, change)
    first = _rounds(folder)[0]
    assert len(first["cohort"]) == 3  # two were drawn, and then one more
    assert list(first["faults"]) == [str(_slot(folder, asked[0]))]
    assert sorted([*first["answered"], _slot(folder, asked[0])]) == first["cohort"]


def test_sites_that_keep_failing_are_left_in_peace_for_longer_and_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_federation(tmp_path, rounds=1, min_clients=3)
    asked: list[str] = []
    paused: list[float] = []

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        asked.append(site)
        return DEAD if site == "lyon" and asked.count("lyon") <= 8 else answer(order)

    monkeypatch.setattr("time.sleep", paused.append)
    run_federation(folder, change)
    assert [pause for pause in paused if pause > 0] == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert asked.count("lyon") == 8 + 1 + 1  # eight times in vain, the round, and the last update


class _PowerCutError(BaseException):
    """Stands for SIGKILL: no handler runs."""


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_server_that_dies_at_any_message_goes_on_and_counts_every_upload_once(
    tmp_path: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_federation(tmp_path)
    messages: list[int] = []
    trained: list[tuple[int, int]] = []
    really = Sgd.train

    def train(self: Sgd, model: Model, task: TrainingJob) -> torch.Tensor:
        trained.append((task.round, task.rng.initial_seed()))
        return really(self, model, task)

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        messages.append(number)
        if len(messages) == cut:
            raise _PowerCutError
        return answer(order)

    monkeypatch.setattr(Sgd, "train", train)

    with pytest.raises(_PowerCutError):
        run_federation(folder, change)
    models = run_federation(folder, change)
    assert len(trained) == len(set(trained)) == 2 * 3  # asked again, nobody trains again
    assert same(models, simulated(folder))
    assert len((folder.server / "run" / "attempts").read_text().splitlines()) == 2
    assert examine(folder.deliveries)[1] is None
    affinity = json.loads(folder.result.read_bytes())["affinity"]
    twin = make_federation(tmp_path / "twin")
    twin.write_registry(
        twin.identity(), [replace(s, slot=o.slot) for s, o in zip(twin.registry(), folder.registry(), strict=True)]
    )
    run_federation(twin)
    assert affinity == json.loads(twin.result.read_bytes())["affinity"]


def test_a_server_that_has_moved_goes_on(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        if number > 3:  # of the second round
            raise _PowerCutError
        return answer(order)

    with pytest.raises(_PowerCutError):
        run_federation(folder, change)
    moved = replace(
        folder.config(), address="127.0.0.1:8444", listen="127.0.0.1:9443", deadline=4.0, startup_timeout=0.02
    )
    folder.settings.write_text(write_toml(moved))
    grid = Loopback(folder)
    serve(grid, folder)
    assert len(grid.orders) == 3 + 3  # the second round, and the last update
    assert same(models_of(folder), simulated(folder))


def test_a_server_from_a_backup_goes_on_though_it_was_started_since(tmp_path: Path) -> None:
    """Sites that are two rounds further fall back."""
    folder = make_federation(tmp_path, rounds=4)

    def dying_in(number_of_round: int) -> Any:
        def change(site: str, number: int, order: bytes, answer: Any) -> Any:
            if len(read_lines(folder.run / "rounds.jsonl")) == number_of_round:
                raise _PowerCutError
            return answer(order)

        return change

    with pytest.raises(_PowerCutError):
        run_federation(folder, dying_in(1))
    shutil.copytree(folder.server, tmp_path / "backup")
    with pytest.raises(_PowerCutError):
        run_federation(folder, dying_in(3))
    shutil.rmtree(folder.server)
    shutil.copytree(tmp_path / "backup", folder.server)
    run_federation(folder)
    assert same(models_of(folder), simulated(folder))
    assert examine(folder.deliveries)[1] is None


def test_who_is_asked_again_answers_without_training_again(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    grid = Loopback(folder)
    serve(grid, folder)
    site, order = grid.orders[3]  # of the second round
    key, server = SiteFolder(folder.sites / site), MessageCipher.read(folder.server / "sealing.key")
    before = _files_in(key)
    answers = [grid.worker(site).handle(order) for _ in range(10)]
    opened = {server.decrypt(MessageCipher.read(key.seal).public_key, answer, Purpose.ANSWER) for answer in answers}
    assert len(opened) == 1
    assert _files_in(key) == before


def _files_in(site: SiteFolder) -> list[tuple[str, int]]:
    return sorted((path.name, path.stat().st_mtime_ns) for path in site.memory.glob("*.parcel"))


def test_an_order_that_waited_until_its_round_was_over_is_neither_trained_nor_paid_for(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3, deadline=0.2)
    site = SiteFolder(folder.sites / "leeds")
    site.privacy_settings.write_text('mode = "deployment"\nnoise = 2.0\nbudget = 50.0\ndelta = 0.01\n')
    waited: list[bytes] = []
    change: Any = lambda name, _, order, answer: waited.append(order) if name == "leeds" else answer(order)  # noqa: E731
    grid = Loopback(folder, change)
    serve(grid, folder)
    assert len(waited) == 3 + 1  # the last one asks for the last update
    sealer = MessageCipher.read(site.seal)
    for number, order in enumerate(waited):
        answer = _read_by_the_server(folder, sealer, grid.worker("leeds").handle(order, time.time() - 1))
        assert (answer.header["fault"], answer.tensors) == (f"round {number} is over", {})
    assert not site.ledger.exists()
    assert not site.models.exists()
    answer = _read_by_the_server(folder, sealer, grid.worker("leeds").handle(waited[0], time.time() + 600))
    assert answer.header["uploads"]
    assert site.ledger.exists()


def test_an_order_of_an_earlier_attempt_is_refused(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    first = Loopback(folder)
    serve(first, folder)
    folder.result.unlink()
    second = Loopback(folder)
    serve(second, folder)
    site, order = first.orders[-1]
    answer = second.worker(site).handle(order)
    told = _read_by_the_server(folder, MessageCipher.read(SiteFolder(folder.sites / site).seal), answer)
    assert told.header["fault"] == "it is of an earlier start of the server"


def test_a_site_that_is_killed_while_it_forgets_later_rounds_plays_the_earlier_one_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = SiteMemory(tmp_path / "memory")
    assert memory.validate(attempt=1, round=3) is None
    for number in (3, 4):
        memory.keep(number, {"x": torch.zeros(1)}, "order", Envelope({}, {}))

    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    for moment in ("SiteMemory._forget", "write_atomically"):
        with monkeypatch.context() as death:
            death.setattr(f"fedfomo.deployment.site_state.{moment}", killed)
            with pytest.raises(KeyboardInterrupt):
                memory.validate(attempt=2, round=3)
    assert memory.validate(attempt=2, round=3) is None
    assert memory.validate(attempt=1, round=4) is not None


def test_a_site_that_lost_its_memory_is_greeted_again(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=4)
    seen: list[str] = []

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        seen.append(site)
        if site == "lyon" and seen.count("lyon") == 2:
            for path in SiteFolder(folder.sites / "lyon").memory.glob("*.parcel"):
                path.unlink()
        return answer(order)

    run_federation(folder, change)
    slot = _slot(folder, "lyon")
    assert [slot in played["answered"] for played in _rounds(folder)] == [True, False, True, True]
    assert "no memory" in _rounds(folder)[1]["faults"][str(slot)]


def test_a_damaged_memory_is_not_used(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    serve(Loopback(folder), folder)
    from fedfomo.deployment.site_state import SiteMemory

    place = SiteFolder(folder.sites / "lyon").memory
    memory = SiteMemory(place)
    older, newest = memory.before(1), memory.before(2)
    assert older is not None
    assert newest is not None
    file = place / "memory-00001.parcel"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found = memory.before(2)
    assert found is not None
    assert all(torch.equal(found[name], older[name]) for name in older)


def test_a_site_refuses_a_download_that_is_broken(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    grid = Loopback(folder)
    serve(grid, folder)
    name, encrypted = grid.orders[-1]
    server = MessageCipher.read(folder.server / "sealing.key")
    site = SiteFolder(folder.sites / name)
    key = MessageCipher.read(site.seal)
    order = Envelope.read(key.decrypt(server.public_key, encrypted, Purpose.REQUEST))
    models = {n: torch.full_like(t, torch.nan) for n, t in order.tensors.items() if n.startswith("download/models")}
    assert models
    huge = {n: torch.full_like(t, 1e9) for n, t in models.items()}
    short = {n: t[:-1] for n, t in order.tensors.items() if n in models}
    for broken, reason in ((models, "not finite"), (huge, "norm"), (short, "coordinates")):
        changed = Envelope(order.header, {**order.tensors, **broken})
        answer = grid.worker(name).handle(server.encrypt(key.public_key, changed.to_bytes(), Purpose.REQUEST))
        assert reason in Envelope.read(server.decrypt(key.public_key, answer, Purpose.ANSWER)).header["fault"]


def test_a_model_can_be_opened_by_its_receiver_alone_and_names_nobody(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    grid = Loopback(folder)
    serve(grid, folder)
    server = MessageCipher.read(folder.server / "sealing.key").public_key
    names = [site.name for site in folder.registry()]
    secrets = [text.encode() for site in folder.registry() for text in (site.name, site.seal, site.key)]
    secrets += [str(grid.node_of(name)).encode() for name in names]
    for receiver, encrypted in grid.orders:
        for name in names:
            key = MessageCipher.read(SiteFolder(folder.sites / name).seal)
            if name == receiver:
                opened = key.decrypt(server, encrypted, Purpose.REQUEST)
                assert not any(secret in opened for secret in secrets)
            else:
                with pytest.raises(DecryptionError):
                    key.decrypt(server, encrypted, Purpose.REQUEST)


def test_a_late_joiner_is_served_from_the_next_round(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3, max_sites=4)

    def change(site: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 2:  # in the first round
            add_site(folder, "porto")
            equip(folder, "porto")
        return answer(order)

    models = run_federation(folder, change)
    slot = _slot(folder, "porto")
    assert [slot in played["cohort"] for played in _rounds(folder)] == [False, True, True]
    assert [slot in played["answered"] for played in _rounds(folder)] == [False, True, True]
    assert "porto" in models


def test_a_site_with_another_network_is_told_so(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    other = SiteFolder(folder.sites / "lyon")
    other.model.write_text(other.model.read_text().replace("600", "601"))
    run_federation(folder)
    assert all("another network" in played["faults"][str(_slot(folder, "lyon"))] for played in _rounds(folder))


def test_a_site_whose_own_code_fails_tells_its_kind_and_no_more(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    SiteFolder(folder.sites / "lyon").data.write_text("def load_data(folder, site):\n    raise KeyError('secret')\n")
    run_federation(folder)
    told = [played["faults"][str(_slot(folder, "lyon"))] for played in _rounds(folder)]
    assert told == ["KeyError at the site; its log has the rest"] * 2


def test_a_site_whose_data_are_odd_tells_that_they_are_and_no_more(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    data = SiteFolder(folder.sites / "lyon").data
    data.write_text("import torch\n\ndef load_data(folder, site):\n    return torch.zeros(7, 3), torch.zeros(5)\n")
    run_federation(folder)
    told = {played["faults"][str(_slot(folder, "lyon"))] for played in _rounds(folder)}
    assert told == {"its data cannot be used; the site's log says why"}


def test_every_delivery_is_logged_with_the_owner_of_each_model(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3)
    grid = Loopback(folder, honest)
    serve(grid, folder)
    lines = [json.loads(line) for line in folder.deliveries.read_text().splitlines()]
    sent = [line for line in lines if line["event"] == "sent"]
    assert [line["to"] for line in sent] == [site for site, _ in grid.orders]
    for line in sent:
        models = [name for name in line["models"] if name.startswith("download/models")]
        assert len(models) == (0 if line["round"] == 0 else 2)
        assert {line["of"][name] for name in models} == ({"leeds", "turin", "lyon"} - {line["to"]} if models else set())
    assert models_of(folder).keys() == {"leeds", "turin", "lyon"}


def test_a_site_that_uploads_anothers_model_does_not_become_its_owner(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=4)
    lyon, server = (
        MessageCipher.read(SiteFolder(folder.sites / "lyon").seal),
        MessageCipher.read(folder.server / "sealing.key"),
    )

    def steal(site: str, number: int, order: bytes, answer: Any) -> Any:
        encrypted = answer(order)
        if site != "lyon":
            return encrypted
        asked = Envelope.read(lyon.decrypt(server.public_key, order, Purpose.REQUEST))
        given = Envelope.read(server.decrypt(lyon.public_key, encrypted, Purpose.ANSWER))
        found = [tensor for name, tensor in asked.tensors.items() if name.startswith("download/models")]
        stolen = {"upload/model": found[0].clone()} if found and given.header["uploads"] else {}
        taken = Envelope(given.header, {**given.tensors, **stolen})
        return lyon.encrypt(server.public_key, taken.to_bytes(), Purpose.ANSWER)

    run_federation(folder, steal)
    makers: dict[str, str] = {}
    named: set[tuple[str, str]] = set()
    for line in (json.loads(line) for line in folder.deliveries.read_text().splitlines()):
        for name, found in line["models"].items():
            if line["event"] == "received":
                makers.setdefault(found, line["from"])
            elif name.startswith("download/models"):
                named.add((makers[found], line["of"][name]))
    assert named == {(name, name) for name in ("leeds", "turin", "lyon")}


def test_uploads_that_are_refused_are_logged_and_take_nobody_the_models_that_are_sent(tmp_path: Path) -> None:
    options = {"availability": "latest", "epsilon": 1.0, "num_averages": 0}
    folder = make_federation(tmp_path, rounds=5, method="fedfomo-as-coded", options=options)
    forge, _ = FORGERIES["one NaN"]

    def later(envelope: Envelope) -> Envelope | bytes:
        return envelope if envelope.header["round"] == 0 else forge(envelope)

    run_federation(folder, _forging(folder, later))
    lines = [json.loads(line) for line in folder.deliveries.read_text().splitlines()]
    of_lyon = [(line["event"], line["round"]) for line in lines if line.get("from") == "lyon"]
    assert of_lyon == [("received", 0), *(("refused", number) for number in range(1, 5))]
    (first,) = [line["models"]["model"] for line in lines if line["event"] == "received" and line["from"] == "lyon"]
    sent = [line for line in lines if line["event"] == "sent"]
    owners = [line["of"].get(name) for line in sent for name, found in line["models"].items() if found == first]
    assert owners == ["lyon"] * 2 * 5  # to two sites, in four rounds and the last update


def test_names_that_a_site_chose_do_not_fill_the_log(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    many = {f"upload/{number}{'x' * 20_000}": torch.zeros(1) for number in range(40)}
    run_federation(folder, _forging(folder, _with(**many)))
    refused = [line for line in folder.deliveries.read_text().splitlines() if '"event": "refused"' in line]
    assert refused
    for line in refused:
        assert len(line) < 12_000
        assert "and 21 more" in line
