"""Files of JSON: strict when they are written, and named when they are damaged."""

import json
import math
from pathlib import Path

import pytest

from cli_calls import SMALL, call, refused
from fedfomo.deployment.provisioning import provision
from fedfomo.deployment.settings import FederationConfig, FederationFolder
from fedfomo.deployment.status import sentences
from fedfomo.errors import InputError
from fedfomo.io import read_json, read_lines, to_json


def test_what_is_not_a_number_is_null() -> None:
    assert json.loads(to_json({1: [math.nan, math.inf, 0.5]})) == {"1": [None, None, 0.5]}


@pytest.mark.parametrize("content", ["", "{", "[1]", "null"])
def test_what_is_no_object_is_named_with_the_way_out(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"a.json is damaged \(.*\): make it again$"):
        read_json(path, "make it again")


def test_a_line_on_its_way_is_not_read_yet(tmp_path: Path) -> None:
    path = tmp_path / "rounds.jsonl"
    assert read_lines(path) == []
    path.write_text('{"round": 0}\n{"round": 1, "suspected": {}}\n{"round": 2, "susp')
    assert [line["round"] for line in read_lines(path)] == [0, 1]
    assert [line["round"] for line in read_lines(path, b'"suspected"')] == [1]


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text("{\n{}\n")
    with pytest.raises(InputError, match=r"rounds.jsonl is damaged \(.*\): resume the run, or run it again"):
        read_lines(tmp_path / "rounds.jsonl")


def test_commands_name_a_damaged_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    call("run", "--out", str(run), *SMALL, "--rounds", "1")
    (run / "environment.json").write_text("{")
    for command in ("export", "--site", "0"), ("report",):
        assert "environment.json is damaged" in refused(capsys, command[0], str(run), *command[1:])
    (run / "result.json").unlink()
    assert "environment.json is damaged" in refused(capsys, "resume", str(run))
    (run / "environment.json").unlink()
    assert "has not begun yet" in refused(capsys, "report", str(run))


@pytest.mark.parametrize("name", ["status", "result"])
def test_a_federations_damaged_files_are_named(tmp_path: Path, name: str) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds", "turin"], FederationConfig(max_sites=2))
    getattr(folder, name).write_text("{")
    with pytest.raises(InputError, match=f"{name}.json is damaged"):
        list(sentences(folder))
