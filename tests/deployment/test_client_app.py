"""The process that Flower starts for every message."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict

from fedfomo.deployment.client_app import introduce, train
from fedfomo.deployment.encryption import DecryptionError, MessageCipher, Purpose
from fedfomo.deployment.flower_records import PROOF, SITE, content_of
from fedfomo.deployment.server_run import serve
from fedfomo.deployment.settings import SITE_VARIABLE
from fedfomo.deployment.site_connections import SiteConnections
from in_memory_transport import Loopback, make_federation


def test_it_does_not_wait_for_torch() -> None:
    code = "import sys, fedfomo.deployment.client_app, fedfomo.deployment.worker_ipc; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("sent", "is_wanted"),
    [
        (0.0, True),
        (-250.0, True),  # it waited, or clocks differ: who knows
        (250.0, True),  # this clock is late
        (-1_000.0, False),  # it waited in a machine that slept
    ],
)
def test_an_order_is_carried_out_unless_it_is_much_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: float, is_wanted: bool
) -> None:
    folder = make_federation(tmp_path, rounds=1, deadline=60.0)
    answers: list[Message] = []

    class Slow(Loopback):
        def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
            messages = list(messages)
            for message in messages:
                names = {self.node_of(site.name): site.name for site in folder.registry()}
                site = names[message.metadata.dst_node_id]
                monkeypatch.setenv(SITE_VARIABLE, str(folder.sites / site))
                message.metadata.created_at += sent if site == "lyon" else 0
                answers.append(train(message, Context(1, 10, {}, RecordDict(), {})))
            return super().push_messages(messages)

    serve(Slow(folder, lambda *_: content_of(answers[-1].content)), folder)
    played = json.loads((folder.server / "run" / "rounds.jsonl").read_text())
    assert list(played["faults"].values()) == ([] if is_wanted else ["round 0 is over"])
    assert len(played["answered"]) == (3 if is_wanted else 2)


@pytest.mark.parametrize("purpose", Purpose)
def test_what_was_encrypted_for_one_purpose_serves_no_other(purpose: Purpose) -> None:
    server, site = MessageCipher(bytes([1] * 32)), MessageCipher(bytes([2] * 32))
    encrypted = server.encrypt(site.public_key, b"a model", purpose)
    assert site.decrypt(server.public_key, encrypted, purpose) == b"a model"
    assert server.decrypt(site.public_key, encrypted, purpose) == b"a model"  # one key at both ends: hence purposes
    for other in set(Purpose) - {purpose}:
        with pytest.raises(DecryptionError, match=f"not encrypted for the purpose '{other.name.lower()}'"):
            server.decrypt(site.public_key, encrypted, other)
        with pytest.raises(DecryptionError, match="not encrypted by its sender"):
            server.decrypt(site.public_key, other.value + encrypted[len(other.value) :], other)


def test_a_stranger_that_says_anything_is_not_let_in_and_stops_nobody(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    claims: list[Any] = [
        {},
        {SITE: "nowhere", PROOF: b"x"},
        {SITE: "leeds"},
        {SITE: "leeds", PROOF: 7.5},
        {SITE: "leeds", PROOF: "words"},
        {SITE: "leeds", PROOF: b"not encrypted at all"},
        {SITE: "leeds", PROOF: 10**12},  # bytes(10**12) would be a terabyte
        "metrics in place of a claim",
        ValueError("no JSON"),
    ]

    class Strangers(Loopback):
        def get_nodes(self) -> list[Any]:
            return [SimpleNamespace(node_id=n, public_key=b"nobody's") for n in range(10, 10 + len(claims))]

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            (asked,) = messages
            claim = claims[asked.metadata.dst_node_id - 10]
            is_claim = isinstance(claim, dict)
            name = str(asked.metadata.dst_node_id)
            asked.metadata.__dict__["_message_id"] = name
            content = RecordDict({PROOF: ConfigRecord(claim)}) if is_claim else RecordDict({PROOF: MetricRecord()})
            self._replies[name] = claim if isinstance(claim, Exception) else Message(content, reply_to=asked)
            return [name]

    assert SiteConnections(Strangers(folder), folder).online() == {}


def test_a_site_whose_key_is_not_known_to_flower_is_let_in_when_it_proves_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_federation(tmp_path)
    monkeypatch.setenv(SITE_VARIABLE, str(folder.sites / "leeds"))

    class Plain(Loopback):
        def get_nodes(self) -> list[Any]:
            return [SimpleNamespace(node_id=10, public_key=b"nobody's")]

        def push_messages(self, messages: Iterable[Message]) -> list[str]:
            (asked,) = messages
            asked.metadata.__dict__["_message_id"] = "question"
            self._replies["question"] = introduce(asked, Context(1, 10, {}, RecordDict(), {}))
            return ["question"]

    slot = next(site.slot for site in folder.registry() if site.name == "leeds")
    assert SiteConnections(Plain(folder), folder).online() == {slot: 10}
