"""What CONTRIBUTING tells the author of a method to do, done in its order."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from cli_calls import call
from fedfomo.runs.run import read_config

CONTRIBUTING = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
METHOD, LAWS = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.DOTALL)
SECTION = CONTRIBUTING.partition("## Your own method")[2].partition("## Changing the library")[0]
SMALL = ["--clients", "4", "--distributions", "2", "--rounds", "2", "--epochs", "1", "--workers", "0"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the method in it, as its author would have it, and be there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_methods.py").write_text(METHOD)
    return tmp_path


def test_the_method_is_compared_resumed_and_reported_on(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compare, report = (line.split() for line in re.findall(r"^    fedfomo (.*)$", SECTION, re.MULTILINE))
    call(*compare, *SMALL, "--MyMethod.mu", "0.5")
    assert "MyMethod" in capsys.readouterr().out
    run = folder / "runs" / "mine" / "MyMethod-seed-2"
    assert read_config(run).options == {"mu": 0.5}

    rounds = (run / "rounds.jsonl").read_bytes()
    shutil.rmtree(run)
    call("resume", "runs/mine")
    assert (run / "rounds.jsonl").read_bytes() == rounds

    call(*report)
    assert (folder / "runs" / "mine" / "report.html").exists()


def test_the_laws_are_tried_on_it(folder: Path) -> None:
    tests: dict[str, object] = {}
    exec(compile(LAWS, "test_my_methods.py", "exec"), tests)  # noqa: S102
    test_law = tests["test_law"]
    [mark] = test_law.pytestmark  # type: ignore[attr-defined]
    for law in mark.args[1][:2]:
        test_law(law)  # type: ignore[operator]


def test_its_entry_point_is_one_that_the_library_reads() -> None:
    [table] = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    points = tomllib.loads(table)["project"]["entry-points"]["fedfomo.algorithms"]
    assert points == {"my-method": "my_package.my_methods:MyMethod"}


def test_the_options_of_a_method_in_a_file_are_spelt_by_its_class(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call("methods", "my_methods.py:MyMethod")
    shown = " ".join(capsys.readouterr().out.split())
    assert "fedfomo run --method my_methods.py:MyMethod --MyMethod.OPTION VALUE" in shown


def test_the_method_takes_no_more_than_forty_lines() -> None:
    assert len(METHOD.splitlines()) <= 40
