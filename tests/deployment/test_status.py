"""How far a federation is, in sentences."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedfomo.cli import deploy
from fedfomo.deployment.audit_log import DeliveryLog
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.settings import FederationConfig, FederationFolder, SiteFolder
from fedfomo.deployment.status import sentences
from in_memory_transport import make_federation, run_federation


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


def _status(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Return what the command ends with, and what it says to programs."""
    code = 0
    try:
        deploy.status([str(folder), "--json"])
    except SystemExit as end:
        code = int(end.code or 0)
    return code, json.loads(capsys.readouterr().out)


def test_a_stall_and_a_log_that_was_tampered_with_end_the_command_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_federation(tmp_path, rounds=3, deadline=100.0)
    assert _status(folder.path, capsys)[0] == 0

    def die(site: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 4:
            raise KeyboardInterrupt
        return answer(order)

    with pytest.raises(KeyboardInterrupt):
        run_federation(folder, die)
    code, facts = _status(folder.path, capsys)
    assert (code, facts["rounds_done"], facts["rounds"], facts["problems"]) == (0, 1, 3, [])
    assert facts["log"] == {"lines": 7, "fault": None}
    really = time.time
    monkeypatch.setattr("time.time", lambda: really() + 2 * 100 + 60 + 5)
    code, facts = _status(folder.path, capsys)
    assert code == 1
    assert "the server may not be running" in facts["problems"][0]
    monkeypatch.undo()
    folder.deliveries.write_bytes(folder.deliveries.read_bytes().replace(b"leeds", b"turin", 1))
    code, facts = _status(folder.path, capsys)
    assert code == 1
    assert "tampered with" in facts["problems"][0]


def test_a_site_is_told_of_in_its_own_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_federation(tmp_path)
    site = SiteFolder(folder.sites / "leeds")
    code, facts = _status(site.path, capsys)
    assert (code, facts["rounds_answered"], facts["is_running"]) == (0, 0, False)
    site.memory.mkdir()
    site.words.write_text(json.dumps({"words": "no server answers\x1b[2J", "is_fault": True, "time": time.time()}))
    code, facts = _status(site.path, capsys)
    assert (code, facts["problems"]) == (1, ["no process of this site runs: start it with `fedfomo deploy site`"])
    holder = "import sys, time; from pathlib import Path; from fedfomo.io import lock; "
    holder += f"held = lock(Path({str(site.path / 'supervisor.lock')!r})); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        code, facts = _status(site.path, capsys)
        assert (code, facts["problems"], facts["is_running"]) == (1, ["no server answers�[2J"], True)
    finally:
        process.kill()
        process.communicate()
    run_federation(folder)
    code, facts = _status(site.path, capsys)
    assert (code, facts["is_finished"], facts["rounds_answered"], facts["score"]["num_examples"]) == (0, True, 2, 4)
    deploy.status([str(site.path)])
    assert "leeds: 2 of 2 rounds answered, and all rounds are complete" in capsys.readouterr().out
