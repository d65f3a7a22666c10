"""A user's own code: Python files, run as Python would run them, and functions, spelled with a digest of their code."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from fedfomo.errors import InputError, require

OWN_MODULES = "fedfomo_own_"
"""What the names of users' modules begin with: their data.py or model.py stands in nobody's way."""


def load_user_module(path: Path) -> ModuleType:
    """Run a file and return what it defines."""
    require(path.is_file(), f"there is no file {path}")
    name = f"{OWN_MODULES}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be read as Python: its name must end in .py")
    _import_from(path.parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up the module that they are defined in
    spec.loader.exec_module(module)
    return module


def find_module(name: str) -> ModuleType:
    """Import a module by its name, from here or from wherever Python looks."""
    missing = InputError(f"there is no folder, file or module {name}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise missing
    _import_from(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and what it imports itself is not
        raise missing from None


def _import_from(folder: Path) -> None:
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.insert(0, place)


def spelled(value: Any) -> str:
    """Spell a value, the same in every process; of a function, its name and a digest of its code and of its closure."""
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
