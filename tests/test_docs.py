"""The documentation: every block of the tutorials runs, and the site lists every page."""

import re
import shlex
from pathlib import Path

import pytest

from cli_calls import call
from fedfomo.cli.main import USAGE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
TESTED_ELSEWHERE = {"training.md", "cluster.md", "flower_app.md", "data.md", "deploying.md"}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [code for name, code in BLOCK.findall(page.read_text()) if name == language]


def test_the_tutorial_for_own_data_runs_and_says_who_gains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = DOCS / "tutorials" / "own-data.md"
    monkeypatch.chdir(tmp_path)
    exec(compile("\n\n".join(blocks(page, "python")), str(page), "exec"), {"__name__": "page"})  # noqa: S102
    printed = capsys.readouterr().out
    assert [name for name in ("Aachen", "Bruges", "Delft") if f"\n{name}: " not in f"\n{printed}"] == []
    assert (tmp_path / "report.html").exists()
    assert (tmp_path / "models" / "Delft.safetensors").exists()


def test_the_tutorial_for_comparisons_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(DOCS / "tutorials" / "researcher.md", "sh"):
        for line in block.splitlines():
            program, *arguments = shlex.split(line)
            assert program == "fedfomo"
            call(*arguments)
    assert (tmp_path / "runs" / "tutorial" / "report.html").exists()
    assert (tmp_path / "runs" / "tutorial" / "comparison.html").exists()


def test_no_page_has_a_block_that_is_not_run() -> None:
    tutorials = {"own-data.md", "researcher.md"}
    pages = [page for page in DOCS.rglob("*.md") if blocks(page, "python") or blocks(page, "sh")]
    assert {page.name for page in pages} <= tutorials | TESTED_ELSEWHERE


def test_every_command_is_in_the_reference() -> None:
    page = (DOCS / "reference" / "commands.md").read_text()
    commands = re.findall(r"^  (\w+)  ", USAGE, re.MULTILINE)
    assert len(commands) > 10
    assert [name for name in commands if f"\n  {name}  " not in page] == []


def test_the_site_lists_every_page() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    folders = re.findall(r": (\w+/)$", listed, re.MULTILINE)
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if f": {page}\n" not in listed and not page.startswith(tuple(folders))] == []
