"""Words for functions and classes that are the same for the same code in every process, and others for other code."""

from __future__ import annotations

import hashlib
import inspect
from functools import partial
from types import CodeType
from typing import Any, cast


def spelled(value: Any) -> str:
    """Spell a value; of a function, its name and a digest of its code and of what it closes over."""
    if isinstance(value, partial):
        whole = cast("partial[Any]", value)
        parts = [spelled(whole.func), *map(spelled, whole.args)]
        return f"partial({', '.join([*parts, *(f'{k}={spelled(v)}' for k, v in whole.keywords.items())])})"
    if inspect.isfunction(value):
        enclosed = [cell.cell_contents for cell in value.__closure__ or ()]
        inside = (_code(value.__code__), [spelled(item) for item in (*(value.__defaults__ or ()), *enclosed)])
        return f"{value.__name__}#{hashlib.sha256(repr(inside).encode()).hexdigest()[:8]}"
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, str | int | float | bool | None):
        return repr(value)
    if " at 0x" in repr(value):
        state = cast(dict[str, Any], getattr(value, "__dict__", {}))
        return f"{type(value).__qualname__}({', '.join(f'{name}={spelled(part)}' for name, part in state.items())})"
    return repr(value)


def _code(code: CodeType) -> tuple[Any, ...]:
    constants = [_code(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, constants
