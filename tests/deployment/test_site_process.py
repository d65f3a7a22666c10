"""A site's processes: what is missing is named, and what dies again and again is given up."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedfomo.deployment import site_process
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.resident_node import ResidentNode
from fedfomo.deployment.settings import SITE_VARIABLE, FederationConfig, FederationFolder, SiteFolder
from fedfomo.deployment.site_process import SiteProcess
from fedfomo.errors import InputError


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds"], FederationConfig(max_sites=2, address="127.0.0.1:9"))
    return SiteFolder(folder.sites / "leeds")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("ca.crt", "restore it from a copy, or have the site's keys renewed"),
        ("authentication.key", "restore it from a copy, or have the site's keys renewed"),
        ("sealing.key", "restore it from a copy, or have the site's keys renewed"),
        ("model.py", "copy the federation's model.py there"),
        ("data.py", "restore it from a copy, or write it anew"),
    ],
)
def test_a_file_that_is_missing_is_named_before_anything_starts(site: SiteFolder, name: str, remedy: str) -> None:
    (site.path / name).unlink()
    with pytest.raises(InputError, match=f"{name} is missing: {remedy}"):
        SiteProcess(site, None, 1, print).run()


def _first_words(site: SiteFolder) -> str:
    """Run a node until it says something."""
    site.memory.mkdir(exist_ok=True)
    stop, said = threading.Event(), list[str]()

    def tell(words: str) -> None:
        said.append(words)
        stop.set()

    ResidentNode(site, lambda request, _: request, tell, stop).run()
    return said[0]


@pytest.mark.parametrize("name", ["ca.crt", "authentication.key"])
def test_what_is_wrong_with_the_folder_of_a_running_site_is_told_in_one_line(site: SiteFolder, name: str) -> None:
    path = site.path / name
    path.write_text("torn")
    told = _first_words(site)
    assert told.startswith(f"{path} is damaged")
    assert told.endswith("trying again")
    path.unlink()
    assert f"{name} is missing" in _first_words(site)


def test_a_node_that_cannot_start_ends_with_one_line(site: SiteFolder) -> None:
    site.seal.write_text("torn")
    command = [sys.executable, "-m", "fedfomo.deployment.resident_node"]
    ended = subprocess.run(
        command, env={**os.environ, SITE_VARIABLE: str(site.path)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1, ended.stderr
    assert "sealing.key is damaged" in ended.stderr


def _keep(site: SiteFolder, code: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keep a process going that runs this code, until it is given up; return what is told."""
    told: list[str] = []
    monkeypatch.setattr(site_process, "sleep", pauses.append)
    with pytest.raises(InputError, match=r"the node ended with 3, 5 times without an answer; site.log may say why"):
        SiteProcess(site, None, 1, told.append)._keep({"node": [sys.executable, "-c", code]}, {}, None, None)
    return told


def test_a_process_that_dies_five_times_is_given_up(site: SiteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    told = _keep(site, "raise SystemExit(3)", pauses, monkeypatch)
    assert told == ["the node ended with 3: starting it again; site.log may say why"] * 4
    assert [pause for pause in pauses if pause != 0.5] == [5, 10, 20, 40]


def test_deaths_before_an_answer_do_not_count(site: SiteFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = str(site.scores)
    code = f"""
import os
size = os.path.getsize({scores!r}) if os.path.exists({scores!r}) else 0
if size < 3:
    open({scores!r}, "a").write("x")
raise SystemExit(3)
"""
    assert len(_keep(site, code, [], monkeypatch)) == 6  # three after an answer, and four of five without
