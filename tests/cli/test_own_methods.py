"""Methods in files of a user's own: run, compared, reported on, resumed."""

import json
from pathlib import Path

import pytest

from cli_calls import SMALL, call, refused
from fedfomo.deployment.allowed_methods import make_method
from fedfomo.errors import InputError
from fedfomo.runs.config import RunConfig
from fedfomo.runs.config_io import read_toml

METHOD = """
from __future__ import annotations

from dataclasses import dataclass

from fedfomo.algorithms.fedavg import Download, FedAvg
from fedfomo.core.local_training import ProximalTerm
from fedfomo.core.options import NonNegative


@dataclass(frozen=True)
class Near(FedAvg):
    \"\"\"Stay near the global model.\"\"\"

    mu: NonNegative = 0.1
    \"\"\"Strength of the pull.\"\"\"

    def penalty(self, download: Download) -> ProximalTerm:
        return ProximalTerm(download.model, self.mu)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.py"
    path.write_text(METHOD)
    return path


def test_a_method_of_ones_own_is_compared_reported_on_and_resumed(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--methods", "mine.py:Near", "fedavg", "--seeds", "0", "--Near.mu", "0.5", *SMALL, "--rounds", "2"]
    call("compare", "--out", "comparison", *flags)
    assert "Near" in capsys.readouterr().out
    run = tmp_path / "comparison" / "Near-seed-0"
    config = read_toml(run / "config.toml", RunConfig)
    assert (config.method, config.options) == (f"{file}:Near", {"mu": 0.5})
    assert json.loads((run / "result.json").read_text())["method"] == "Near"
    call("report", "comparison", "--method", "Near")

    (run / "result.json").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    call("resume", str(run))
    (run / "result.json").unlink()
    file.write_text(METHOD.replace("0.1", "0.2"))
    assert f"{file} has changed since {run} was begun: undo the change" in refused(capsys, "resume", str(run))


def test_options_of_ones_own_method_have_help(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("run", "--method", "mine.py:Near", "--help")
    shown = capsys.readouterr().out
    assert "--Near.mu FLOAT" in shown
    assert "Strength of the pull." in shown


@pytest.mark.parametrize(
    ("method", "line"),
    [
        ("nowhere.py:Near", "there is no file"),
        ("mine.py:Far", "mine.py defines no class Far"),
        ("mine.py:Download", "mine.py:Download is no dataclass that inherits from"),
    ],
)
def test_what_is_no_method_is_refused(method: str, line: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert line in refused(capsys, "run", "--method", method, *SMALL)


def test_no_federation_plays_a_method_from_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "deploy", "init", "--sites", "leeds,turin", "--method", "mine.py:Near")
    assert "method 'mine.py:Near' comes from a file, and no real federation runs it" in said
    with pytest.raises(InputError, match="comes from a file"):
        make_method(f"{file}:Near", {})  # as a site does when the server names it
