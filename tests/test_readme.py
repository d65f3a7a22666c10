"""What the README shows, works."""

import re
from pathlib import Path

import pytest

from cli_calls import call
from fedfomo.algorithms import ALGORITHMS

README = Path(__file__).parents[1] / "README.md"
GAIN = r"\([+−][\d.]+ points, between [+−][\d.]+ and [+−][\d.]+"


def test_the_example_of_your_own_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})  # noqa: S102
    printed = capsys.readouterr().out
    for site in ("leeds", "turin", "lyon", "porto"):
        for lines in (printed, README.read_text()):
            assert re.search(rf"^ *{site}: .*{GAIN}", lines, re.MULTILINE), site
    assert (tmp_path / "report.html").stat().st_size < 6_000_000


def test_the_example_is_checked_without_being_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    data, call_of_federate = example.split("result = ")
    file = tmp_path / "places.py"
    file.write_text(data + 'if __name__ == "__main__":\n    result = ' + call_of_federate.replace("\n", "\n    "))
    call("check", str(file))
    printed = capsys.readouterr().out
    assert "BatchNorm (2 in the model)" in printed
    assert "4 sites can federate" in printed


def test_the_folders_on_the_map_exist() -> None:
    for path in re.findall(r"^\| `([^`]+)`", README.read_text(), re.MULTILINE):
        assert (README.parent / path).exists(), path


def test_the_methods_are_counted() -> None:
    assert f"# {len(ALGORITHMS)} of them: " in README.read_text()
