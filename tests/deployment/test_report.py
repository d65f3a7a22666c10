"""A report of what the server of a federation knows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_calls import call, refused
from fedfomo.deployment.report import load_federation
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.report.build import build_report_data
from in_memory_transport import MODEL, make_federation, run_federation

SITES = ("leeds", "turin", "lyon")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> FederationFolder:
    folder = make_federation(tmp_path_factory.mktemp("run"), SITES, max_sites=5, rounds=3)

    lost: list[int] = []

    def loses(site: str, number: int, order: bytes, answer: Callable[[bytes], Any]) -> Any:
        if site == "lyon" and not lost:
            lost.append(number)
            return None
        return answer(order)

    run_federation(folder, loses)
    return folder


def test_it_shows_what_the_server_knows(played: FederationFolder) -> None:
    facts = build_report_data(load_federation(played))
    result = json.loads(played.result.read_text())
    slots = {site.name: site.slot for site in played.registry()}
    names = [client.name for client in facts.clients]
    assert sorted(names) == sorted(SITES)
    assert (facts.is_finished, len(facts.rounds), facts.method) == (True, 3, "fedfomo")
    assert all((client.train, client.validation) == (None, None) for client in facts.clients)
    assert facts.affinity == [[result["affinity"][slots[one]][slots[other]] for other in names] for one in names]
    (method,) = facts.methods
    told = {name: score["metric"] for name, score in result["after_update"].items()}
    assert {name: score.value for name, score in zip(names, method.scores, strict=True) if score} == told
    assert method.gains == [None] * 3
    assert "reported by the sites" in facts.metric
    assert any("nobody can check them" in note for note in facts.health.notes)
    assert facts.privacy is not None
    assert facts.privacy.delta is None
    assert all(facts.bytes_up > 0 for facts in facts.rounds)
    assert facts.health.dropped_out == [int(name == "lyon") for name in names]
    assert sum(facts.health.took_part) == sum(len(json.loads(line)["cohort"]) for line in _log(played))


def test_it_is_written_by_the_command(
    played: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    call("report", str(played.path), "--out", str(page))
    assert "No score of training alone is known here" in capsys.readouterr().out
    assert '"name":"leeds"' in page.read_text()
    assert page.stat().st_mode & 0o077 == 0
    assert "takes --out alone" in refused(capsys, "report", str(played.path), "--watch")


def test_an_unfinished_one_says_so_and_one_not_begun_is_refused(
    played: FederationFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = played.result.read_bytes()
    played.result.unlink()
    facts = build_report_data(load_federation(played))
    played.result.write_bytes(result)
    assert not facts.is_finished
    assert any("3 rounds are complete" in note for note in facts.health.notes)
    assert all(client.test > 0 for client in facts.clients)
    fresh = make_federation(tmp_path)
    assert "`fedfomo deploy status` says how far it is" in refused(capsys, "report", str(fresh.path))


def test_a_metric_of_whole_sets_has_no_interval_of_a_share(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, SITES, rounds=1)
    of_sets = 'metrics = {"right": lambda outputs, labels: float((outputs.argmax(1) == labels).double().mean())}'
    for path in (folder.model, *(SiteFolder(folder.sites / name).model for name in SITES)):
        path.write_text(f"{MODEL}\n\n{of_sets}\n")
    run_federation(folder)
    facts = build_report_data(load_federation(folder))
    assert not facts.is_share
    assert not any(score is None or score.has_interval for score in facts.methods[0].scores)
    result = json.loads(folder.result.read_text())
    assert result.pop("is_of_sets") is True
    folder.result.write_text(json.dumps(result))  # as older servers wrote it
    assert build_report_data(load_federation(folder)).is_share


def _log(folder: FederationFolder) -> list[str]:
    return (folder.server / "run" / "rounds.jsonl").read_text().splitlines()
