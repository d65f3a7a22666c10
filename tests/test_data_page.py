"""What docs/data.md shows, works."""

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "data.md"


def test_the_examples_of_the_page_run_one_after_the_other() -> None:
    pytest.importorskip("pandas")
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) == 3
    names: dict[str, Any] = {"__name__": "page"}
    for example in examples:
        exec(compile(example, "data.md", "exec"), names)  # noqa: S102
