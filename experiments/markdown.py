"""Markdown of generated pages: tables, signed numbers, and blocks that are written anew from results."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from textwrap import fill

from fedfomo.errors import InputError, unknown

MISSING = "–"
NOTHING = "Nothing has been computed yet."
BLOCK = re.compile(r"<!-- begin (\w+) -->\n.*?<!-- end \1 -->", re.DOTALL)


def signed(difference: float, digits: int = 1) -> str:
    """Spell out a difference with its sign, if any is left of it."""
    text = f"{difference:+.{digits}f}"
    return text.replace("-", "−") if float(text) else text[1:]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> str:
    """Return a table; the first columns are words, the others numbers."""
    marks = ["---" if place < words else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, marks, *rows))


def wrapped(text: str) -> str:
    """Break a paragraph into lines as the pages have them."""
    return fill(text, 120, break_long_words=False, break_on_hyphens=False)


def filled(text: str, blocks: Mapping[str, Callable[[], str]]) -> str:
    """Return a page with every block between `begin NAME` and `end NAME` written anew."""

    def anew(block: re.Match[str]) -> str:
        name = block[1]
        if name not in blocks:
            raise unknown("block of results", name, blocks)
        return f"<!-- begin {name} -->\n{blocks[name]()}\n<!-- end {name} -->"

    if len(BLOCK.findall(text)) != text.count("<!-- begin "):
        raise InputError("a block of results is not closed: every <!-- begin NAME --> needs its <!-- end NAME -->")
    return BLOCK.sub(anew, text)
