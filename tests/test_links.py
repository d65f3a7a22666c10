"""Whatever a page of the documentation links to or names by its path, exists."""

import re
import subprocess
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


OF_USERS = {"my_methods.py", "test_my_methods.py"}
"""Files that a reader writes, as CONTRIBUTING tells."""


def test_every_module_that_a_page_names_exists() -> None:
    """Pages name modules by the end of their path: `simulation/worker.py`, or `worker.py` where that is clear."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = ["/" + path for path in listed.splitlines()]
    named = {(page, name) for page in PAGES for name in re.findall(r"`([\w/.-]+\.py)`", page.read_text())}
    assert len(named) > 30
    lost = [(page.name, name) for page, name in named if not any(path.endswith("/" + name) for path in files)]
    assert [(page, name) for page, name in lost if name not in OF_USERS] == []


def test_the_walks_of_the_design_name_every_package() -> None:
    walks = (ROOT / "docs" / "design.md").read_text().partition("## Five paths")[2].partition("## Decisions")[0]
    packages = {path.name for path in (ROOT / "src" / "fedfomo").iterdir() if (path / "__init__.py").exists()}
    assert [name for name in sorted(packages) if f"{name}/" not in walks] == []
