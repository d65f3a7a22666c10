"""The table of methods in the documentation, and what `fedfomo methods` prints, are the registry's."""

import re

from fedfomo.algorithms import ALGORITHMS
from methods_table import DESCRIPTIONS, README, descriptions, with_table


def test_the_documented_table_is_what_the_registry_says() -> None:
    page = README.read_text()
    assert with_table(page) == page, "python tests/methods_table.py writes it again"


def test_the_descriptions_that_are_printed_are_what_the_registry_says() -> None:
    assert DESCRIPTIONS.read_text() == descriptions(), "python tests/methods_table.py writes them again"


def test_every_method_has_one_line_and_a_page() -> None:
    named = re.findall(r"^\| \[`(.+)`\]\((.+\.md)\)", README.read_text(), re.MULTILINE)
    assert sorted(name for name, _ in named) == sorted(ALGORITHMS)
    assert all((README.parent / page).is_file() for _, page in named)


def test_the_readme_says_how_many_methods_there_are() -> None:
    front = README.parents[2] / "README.md"
    assert f"# {len(ALGORITHMS)} of them" in front.read_text()
