"""The methods' pages name what there is: every function, option and file that they speak of is in the source."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "algorithms").glob("*.md"))
CODE = re.compile(r"`([^`\n]+)`")
# Whatever is called, and whatever is written with underscores.
IDENTIFIER = re.compile(r"[A-Za-z_]\w*(?=\()|[A-Za-z]\w*_\w+")


def identifiers(text: str) -> set[str]:
    """Return the identifiers between backticks, but for those in commands and paths."""
    pieces = [code for code in CODE.findall(text) if not code.startswith(("fedfomo ", "--")) and "/" not in code]
    return {name for code in pieces for name in IDENTIFIER.findall(code)}


def defined(tree: ast.AST) -> Iterator[str]:
    """Yield the names of functions, classes, arguments and fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


@cache
def in_the_source() -> frozenset[str]:
    files = list((ROOT / "src" / "fedfomo").rglob("*.py"))
    return frozenset(name for file in files for name in (file.stem, *defined(ast.parse(file.read_text()))))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_is_in_the_source(page: Path) -> None:
    assert identifiers(page.read_text()) - in_the_source() == set()


def test_identifiers_are_found() -> None:
    text = (
        "`best_model`, `client.train(local_only=True)`, `fedfomo run --a_b`, `--some.flag_x`, `docs/a_b.md` and `mix`"
    )
    assert identifiers(text) == {"best_model", "train", "local_only"}
