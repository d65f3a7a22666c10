"""A site's log of answers after a power cut, and a last update whose report cannot be written."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from fedfomo.deployment import site_client, site_status
from fedfomo.deployment.settings import SiteFolder
from fedfomo.deployment.site_client import Worker
from fedfomo.deployment.site_report import load_site
from fedfomo.deployment.site_scores import add_line, read_scores
from in_memory_transport import Loopback, make_federation, run_federation, serve


@pytest.mark.parametrize(
    ("torn", "kept"), [(b'{"round": 1, "ki', 2), (b"\0\0\0\0", 2), (b'{"round": 1, "kind": "train"}', 3), (b"", 2)]
)
def test_a_torn_line_takes_no_other_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, torn: bytes, kept: int
) -> None:
    site = SiteFolder(tmp_path)
    add_line(site, {"round": 0, "kind": "train"})
    with site.scores.open("ab") as file:
        file.write(torn)
    assert [line["round"] for line in read_scores(site)] == [0]  # the last one may be on its way
    add_line(site, {"round": 2, "kind": "train"})
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            rounds = [line["round"] for line in read_scores(site)]
    assert (len(rounds), rounds[0], rounds[-1]) == (kept, 0, 2)
    is_lost = bool(torn) and kept == 2
    assert caplog.messages == (
        [f"line 2 of {site.scores} cannot be read, and is left out: a power cut may have torn it"] if is_lost else []
    )


def test_a_site_goes_on_after_a_power_cut_has_torn_its_log(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    site = SiteFolder(folder.sites / "leeds")
    site.scores.write_bytes(b'{"round": 0, "ki')
    run_federation(folder)
    assert site_status.facts(site)["rounds_answered"] == 2
    assert len(load_site(site).lines) == 2


def test_a_report_that_cannot_be_written_is_no_fault_of_the_last_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, told = make_federation(tmp_path), list[str]()

    def fail(_: SiteFolder) -> str:
        raise OSError(28, "No space left on device")

    class Talking(Loopback):
        def worker(self, site: str) -> Any:
            if site == "leeds" and site not in self._workers:
                self._workers[site] = Worker(SiteFolder(folder.sites / site), None, told.append)
            return super().worker(site)

    monkeypatch.setattr(site_client, "conclude", fail)
    serve(Talking(folder), folder)
    result = json.loads(folder.result.read_bytes())
    assert result["without_last_update"] == []
    assert told[-2].startswith("all 2 rounds are complete")
    assert told[-1] == "the report cannot be written (OSError): site.log says why"
    assert "No space left on device" in caplog.text
