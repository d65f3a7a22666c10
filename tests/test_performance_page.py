"""The tables of docs/performance.md are those of the committed files."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_every_table_is_written_from_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import page

    monkeypatch.delitem(sys.modules, "page")
    text = page.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- begin ") == 8
    assert page.refreshed(text) == text, "run `python benchmarks/page.py`"
