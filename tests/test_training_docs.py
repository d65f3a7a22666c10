"""Every block of docs/training.md runs."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "training.md"


def test_every_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile("\n\n".join(blocks), str(PAGE), "exec"), {"__name__": "page"})  # noqa: S102
