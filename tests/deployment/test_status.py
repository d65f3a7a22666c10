"""How far a federation is, in sentences."""

from __future__ import annotations

import json
import time
from pathlib import Path

from fedfomo.deployment.audit_log import DeliveryLog
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.settings import FederationConfig, FederationFolder
from fedfomo.deployment.status import sentences


def test_words_that_a_terminal_would_obey_are_not_passed_on(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds"], FederationConfig(max_sites=3))
    status = {"rounds_done": 2, "rounds": 5, "asked": [], "answered": [], "faults": {"leeds": "x\ud800\n\x1b[2J"}}
    numbers = {"bytes_sent": 1, "bytes_received": 1, "seconds": 1.0, "time": time.time()}
    folder.status.write_text(json.dumps({**status, **numbers}))
    assert "leeds: x���[2J" in list(sentences(folder))


def test_absences_refusals_and_odd_uploads_are_told_by_name(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds", "turin", "lyon"], FederationConfig(max_sites=3))
    status = {
        "rounds_done": 2,
        "rounds": 5,
        "asked": ["leeds", "turin", "lyon"],
        "answered": ["turin", "lyon"],
        "faults": {"leeds": "no answer"},
        "refused": {"turin": "'model' is not finite"},
        "suspected": {"lyon": "nearly the model of client 1"},
        "bytes_sent": 1,
        "bytes_received": 1,
        "seconds": 1.0,
        "time": time.time(),
    }
    folder.status.write_text(json.dumps(status))
    told = list(sentences(folder))
    assert "leeds: no answer" in told
    assert "turin: upload refused: 'model' is not finite" in told
    assert "lyon: upload is odd: nearly the model of client 1" in told


def test_a_delivery_log_is_told_of_as_soon_as_it_is_there_and_missed_when_it_is_gone(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds"], FederationConfig(max_sites=2))
    assert not any("delivery log" in line for line in sentences(folder))
    DeliveryLog(folder.deliveries).add({"event": "sent"})
    assert "delivery log: 1 lines, whole" in list(sentences(folder))
    folder.deliveries.unlink()
    assert "delivery log: 0 lines, TAMPERED WITH: it is gone, and 1 lines were written" in list(sentences(folder))
