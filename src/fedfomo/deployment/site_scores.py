"""A site's log of its answers: a line for each, with how its models did. It stays at the site."""

from __future__ import annotations

import json
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any, cast

from fedfomo.deployment.settings import SiteFolder
from fedfomo.errors import UNREADABLE
from fedfomo.io import to_json

log = logging.getLogger(__name__)


def add_line(site: SiteFolder, line: dict[str, Any]) -> None:
    """Add a line. What a power cut left of an earlier one is ended first, so that the new line can be read."""
    with site.scores.open("a+b") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        is_torn = file.read() not in (b"", b"\n")
        file.write((b"\n" if is_torn else b"") + to_json(line).encode() + b"\n")


def read_scores(site: SiteFolder) -> list[dict[str, Any]]:
    """Read the whole lines, and leave out those that cannot be read; the last one may still be on its way."""
    if not site.scores.exists():
        return []
    found: list[dict[str, Any]] = []
    with site.scores.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            known = _understood(line)
            if known is not None:
                found.append(known)
            elif line.endswith(b"\n"):
                _warn(site.scores, number)
    return found


def _understood(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        known = json.loads(line)
    except UNREADABLE:
        return None
    return cast(dict[str, Any], known) if isinstance(known, dict) and "kind" in known else None


@cache
def _warn(path: Path, number: int) -> None:
    """Say it once in a process: whoever watches a site reads its lines again and again."""
    log.warning("line %d of %s cannot be read, and is left out: a power cut may have torn it", number, path)
