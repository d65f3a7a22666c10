"""Words that came from elsewhere, before they reach a log or a terminal."""

from __future__ import annotations

MOST = 300  # characters


def printable(words: str) -> str:
    """Return words on one line, with a mark in place of what steers terminals or cannot be encoded, and cut if long."""
    shown = "".join(character if character.isprintable() else "�" for character in words[:MOST])
    return shown + ("…" if len(words) > MOST else "")
