"""Whatever a page of the documentation links to or names by its path, exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *(page for folder in ("docs", "examples", "experiments") for page in (ROOT / folder).rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_points_at_exists(page: Path) -> None:
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\((?!\w+:)([^)#\s]+)", text)]
    paths = [
        ROOT / path
        for path in re.findall(r"`((?:src|tests|docs|examples|experiments|benchmarks|results)/[\w/.-]+)`", text)
    ]
    assert [str(path) for path in links + paths if not path.exists()] == []
