"""A site's own log says of every answer what was in it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.settings import SiteFolder
from in_memory_transport import Answer, make_federation, run_federation

FINDINGS = "findings.ids, findings.increments, findings.shares"
PROTECTED = 'mode = "deployment"\nnoise = 2.0\nbudget = 50.0\ndelta = 0.01\n'


def _departures(place: Path, caplog: pytest.LogCaptureFixture, privacy: str = "", **settings: Any) -> list[str]:
    """Run a federation of one site; return what its log says of answers, without their bytes, which are as said."""
    folder = make_federation(place, ["leeds"], deadline=60.0, **settings)
    site, server = SiteFolder(folder.sites / "leeds"), MessageCipher.read(folder.server / "sealing.key")
    site.privacy_settings.write_text(privacy)
    sizes: list[int] = []

    def listen(name: str, number: int, order: bytes, answer: Answer) -> Any:
        encrypted = answer(order)
        sizes.append(len(server.decrypt(MessageCipher.read(site.seal).public_key, encrypted, Purpose.ANSWER)))
        return encrypted

    with caplog.at_level(logging.INFO, "fedfomo.deployment.site_client"):
        run_federation(folder, listen)
    lines = [record.getMessage() for record in caplog.records if " bytes leave: " in record.getMessage()]
    assert len(lines) == len(sizes)
    for line, size in zip(lines, sizes, strict=True):
        assert f" {size} bytes leave: " in line
    return [line.replace(f": {size} bytes leave", "") for line, size in zip(lines, sizes, strict=True)]


def test_every_answer_is_on_the_log_with_what_is_in_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scores = "score after_update, score after_training"
    assert _departures(tmp_path, caplog, rounds=2) == [
        f"round 0, 'train': {FINDINGS}, model, {scores}",
        f"round 1, 'train': {FINDINGS}, model, {scores}",
        "round 2, 'finish': score after_update",
    ]


def test_no_scores_leave_a_protected_site(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert _departures(tmp_path, caplog, PROTECTED, method="fedavg", rounds=1) == [
        "round 0, 'train': model, num_examples",
        "round 1, 'finish': nothing but word that it is done",
    ]
