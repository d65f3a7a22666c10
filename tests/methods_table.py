"""What is derived from the registry of methods; `python tests/methods_table.py` writes it.

It is the table in docs/algorithms/README.md, and the descriptions that `fedfomo methods` prints.
"""

import json
from pathlib import Path

from fedfomo.algorithms import ALGORITHMS, FAMILIES, describe

PAGES = Path(__file__).parents[1] / "docs" / "algorithms"
README = PAGES / "README.md"
DESCRIPTIONS = Path(__file__).parents[1] / "src" / "fedfomo" / "cli" / "methods.json"


def table() -> str:
    """Return the table, with a line for every method."""
    lines = ["| name | paper | |", "| --- | --- | --- |"]
    for family, modules in FAMILIES.items():
        lines.append(f"| **{family}** | | |")
        for module in modules:
            lines += [_line(name) for name in ALGORITHMS if _module_of(name) == module]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """Return the page with the table that it should have; it is the last thing on it."""
    head, start, _ = page.partition("| name |")
    assert start, f"{README} has no table"
    return head + table()


def descriptions() -> str:
    """Return every method's description."""
    methods: dict[str, object] = {}
    for name in ALGORITHMS:
        about = describe(name)
        options = [{"name": each.name, "default": each.default, "help": each.help} for each in about.options]
        methods[name] = {**vars(about), "options": options}
    return json.dumps(methods, indent=1, ensure_ascii=False) + "\n"


def _module_of(name: str) -> str:
    return ALGORITHMS[name].__module__.removeprefix("fedfomo.algorithms.")


def _line(name: str) -> str:
    about = describe(name)
    pages = [getattr(cls, "name", "") for cls in ALGORITHMS[name].__mro__]  # a variant may be on its method's page
    page = next(page for page in pages if page and (PAGES / f"{page}.md").is_file())
    return f"| [`{name}`]({page}.md) | {about.paper or '–'} | {about.summary.removesuffix('.')} |"


if __name__ == "__main__":
    README.write_text(with_table(README.read_text()))
    DESCRIPTIONS.write_text(descriptions())
