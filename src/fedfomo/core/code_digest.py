"""Functions and settings of a user's own, spelled so that the same has the same words in every process.

A function is its name and a digest: of its code, its defaults, what it encloses, and the globals that it reads, be they
data or further functions of the user's own. Modules and libraries count by their names alone.
"""

from __future__ import annotations

import dataclasses
import dis
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, cast

_PLAIN = str | bytes | int | float | complex | bool | None
_INSTALLED = {"site-packages", "dist-packages"}


def spelled(value: Any) -> str:
    """Spell a value, the same in every process; of a function, its name and a digest of all that it does."""
    return _Speller().spell(value)


class _Speller:
    """Spells a value and what it refers to, each once, however it refers to itself."""

    def __init__(self) -> None:
        self._met: dict[int, tuple[Any, str]] = {}  # by identity, which lasts as long as the value is kept

    def spell(self, value: Any, is_global: bool = False) -> str:
        """Spell a value; of a global, which may be anything, only what is data or code."""
        if isinstance(value, _PLAIN):
            return repr(value)
        if id(value) not in self._met:
            self._met[id(value)] = value, f"<{getattr(value, '__name__', type(value).__qualname__)}>"
            self._met[id(value)] = value, self._spell_anew(value, is_global)
        return self._met[id(value)][1]

    def _spell_anew(self, value: Any, is_global: bool) -> str:
        each: Callable[[Any], str] = partial(self.spell, is_global=is_global)
        if isinstance(value, partial):
            whole = cast("partial[Any]", value)
            parts = [each(whole.func), *map(each, whole.args)]
            return f"partial({', '.join([*parts, *(f'{k}={each(v)}' for k, v in whole.keywords.items())])})"
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return f"{each(value.__self__)}.{each(value.__func__)}"
        if isinstance(value, type):
            return value.__qualname__
        if type(value) in (list, tuple, dict, set, frozenset):
            return _container(value, each)
        if is_global and not (dataclasses.is_dataclass(value) or hasattr(value, "__array__")):
            return type(value).__qualname__
        if " at 0x" in repr(value):
            state = cast(dict[str, Any], getattr(value, "__dict__", {}))
            return f"{type(value).__qualname__}({', '.join(f'{name}={each(part)}' for name, part in state.items())})"
        return repr(value)

    def _function(self, function: FunctionType) -> str:
        enclosed = map(_content, function.__closure__ or ())
        given = [self.spell(item) for item in (*(function.__defaults__ or ()), *enclosed)]
        named = {name: self.spell(item) for name, item in sorted((function.__kwdefaults__ or {}).items())}
        read = {} if _is_of_library(function) else self._globals(function)
        inside = (_code(function.__code__), given, *(part for part in (named, read) if part))
        return f"{function.__name__}#{hashlib.sha256(repr(inside).encode()).hexdigest()[:8]}"

    def _globals(self, function: FunctionType) -> dict[str, str]:
        """Spell the globals that a function reads, where their names do not say everything."""
        found: dict[str, str] = {}
        for name in sorted(set(_names_read(function.__code__))):
            value = function.__globals__.get(name)
            is_absent = name not in function.__globals__ or isinstance(value, ModuleType)
            is_library = isinstance(value, type) or inspect.isbuiltin(value) or _is_of_library(value)
            if not is_absent and not (is_library and getattr(value, "__name__", None) == name):
                found[name] = self.spell(value, is_global=True)
        return found


def _container(value: Any, spell: Callable[[Any], str]) -> str:
    """Spell a container as Python does, with what it holds spelled; sets have no order but that of their words."""
    if isinstance(value, dict):
        pairs = cast("dict[Any, Any]", value).items()
        return "{" + ", ".join(f"{spell(key)}: {spell(item)}" for key, item in pairs) + "}"
    parts = [spell(item) for item in cast(Iterable[Any], value)]
    if isinstance(value, set | frozenset):
        return f"{type(cast(object, value)).__name__}({', '.join(sorted(parts))})"
    if isinstance(value, tuple):
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    return f"[{', '.join(parts)}]"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned to the name yet
        return None


def _is_of_library(value: Any) -> bool:
    """Tell whether a function is Python's own, this library's, or one that is installed."""
    if not isinstance(value, FunctionType):
        return False
    root = str(value.__module__).partition(".")[0]
    is_installed = not _INSTALLED.isdisjoint(Path(value.__code__.co_filename).parts)
    return root == "fedfomo" or root in sys.stdlib_module_names or is_installed


def _names_read(code: CodeType) -> Iterable[str]:
    """Yield the names that code looks up outside of its function."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_read(each)


def _code(code: CodeType) -> tuple[Any, ...]:
    return code.co_code, code.co_names, [_constant(each) for each in code.co_consts]


def _constant(value: Any) -> Any:
    if isinstance(value, CodeType):
        return _code(value)
    if isinstance(value, frozenset):
        return "frozenset", sorted(map(repr, cast("frozenset[Any]", value)))
    if isinstance(value, tuple):
        return tuple(map(_constant, cast(tuple[Any, ...], value)))
    return value
