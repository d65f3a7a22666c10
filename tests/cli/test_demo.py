"""The demo: one story, its table and picture, and a report."""

import re
from pathlib import Path

import pytest

from cli_calls import call, refused
from fedfomo.datasets.post_offices import OFFICES


def test_the_demo_ends_with_a_sentence_for_each_office_and_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedfomo.cli.demo.ROUNDS", 8)
    call("demo", "--seeds", "0", "--out", str(tmp_path / "demo"))
    shown = capsys.readouterr().out
    sentences = dict(re.findall(r"^(\w+): (\d+ % alone, \d+ % federated.*)$", shown, re.MULTILINE))
    assert sentences.keys() == {office.name for office in OFFICES}
    alone, federated = map(int, re.findall(r"(\d+) %", sentences["Cork"]))
    assert alone < 30  # it trains on images that lie otherwise than those that it has to read
    assert federated > 75
    assert re.search("learned from .*Galway", sentences["Cork"])  # the office that trains on upright images
    assert str(tmp_path / "demo" / "report.html") in shown.replace("\n", "")
    assert "Cork" in (tmp_path / "demo" / "report.html").read_text()


def test_a_scenario_is_one_flag_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "demo"
    assert "unknown scenario 'latent groups'" in refused(
        capsys, "demo", "--scenario", "latent groups", "--out", str(folder)
    )
    assert not folder.exists()
    call("demo", "--scenario", "latent", "--seeds", "0", "--out", str(folder))
    assert "who benefits from whom" in capsys.readouterr().out
    assert (folder / "report.html").exists()
