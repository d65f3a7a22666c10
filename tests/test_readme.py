"""What the README shows, works."""

import re
import sys
from pathlib import Path

import pytest

from cli_calls import call
from fedfomo.algorithms import ALGORITHMS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
SENTENCE = r"auc [\d.]+ instead of [\d.]+ \([+−][\d.]+, between [+−][\d.]+ and [+−][\d.]+"


def test_the_training_script_becomes_a_federation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [example] = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    statements = example.partition("import fedfomo\n")[2].strip().splitlines()
    assert len(statements) == 5
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import training_script

    training_script.write_mail(tmp_path / "mail")
    quick = example.replace("metrics=", "rounds=2, workers=0, metrics=")
    exec(compile(quick, "README.md", "exec"), {})  # noqa: S102
    del sys.modules["training_script"]
    printed = capsys.readouterr().out
    for site in training_script.OFFICES:
        for lines in (printed, README.read_text()):
            assert re.search(rf"^ *{site}: {SENTENCE}", lines, re.MULTILINE), site
    assert (tmp_path / "report.html").stat().st_size < 6_000_000
    script = (ROOT / "examples" / "federated_script.py").read_text()
    assert [line for line in statements[:3] if f"    {line}\n" not in script] == []


def test_the_commands_exist() -> None:
    shown = re.findall(r"^    fedfomo (\w+)", README.read_text(), re.MULTILINE)
    assert len(shown) > 5
    for command in shown:
        call(command, "--help")


def test_the_folders_on_the_map_exist() -> None:
    for path in re.findall(r"^\| `([^`]+)`", README.read_text(), re.MULTILINE):
        assert (README.parent / path).exists(), path


def test_the_methods_are_counted() -> None:
    assert f"# {len(ALGORITHMS)} of them: " in README.read_text()
    assert f"{len(ALGORITHMS) - 1} other methods" in README.read_text()
