"""Files of JSON: strict when they are written, and named when they are damaged.

No torch here: the process that Flower starts for every message would wait for it.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from fedfomo.errors import reading


def to_json(value: Any, indent: int | None = None) -> str:
    """Spell out plain values as strict JSON."""
    return json.dumps(_without_nan(value), allow_nan=False, indent=indent)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a file that holds one object; if it is damaged, say what to do."""
    with reading(path, remedy):
        return dict[str, Any](json.loads(path.read_bytes()))


def read_lines(path: Path, holding: bytes = b"") -> list[dict[str, Any]]:
    """Read the whole lines of a run's log, or those that hold a word; the last one may still be on its way."""
    if not path.exists():
        return []
    with reading(path, "resume the run, or play it again"), path.open("rb") as lines:
        return [json.loads(line) for line in lines if holding in line and line.endswith(b"\n")]


def _without_nan(value: Any) -> Any:
    """Write what is not a number as null: JSON has no other word for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
