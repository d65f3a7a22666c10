"""Methods that are not part of the library: `path/to/file.py:Class`, and those that installed packages bring along."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, cast

from fedfomo.core.algorithm import Algorithm, AnyAlgorithm
from fedfomo.errors import InputError, require

ENTRY_POINTS = "fedfomo.algorithms"
"""The group of entry points in which packages name their methods."""


def file_of(name: str) -> Path | None:
    """Return the Python file that a method comes from; None: it is a method of the library or of a package."""
    path, colon, _ = name.rpartition(":")
    return Path(path) if colon and path.endswith(".py") else None


@cache
def find_own_algorithm(name: str) -> type[AnyAlgorithm] | None:
    """Return the class that a file or a package has for a method, if there is one."""
    file = file_of(name)
    if file is None:
        found = [entry.load() for entry in entry_points(group=ENTRY_POINTS) if entry.name == name]
        return _checked(name, found[0]) if found else None
    word = name.rpartition(":")[2]
    module = _run_file(file.absolute())
    require(hasattr(module, word), f"{file} defines no class {word}")
    return _checked(name, getattr(module, word))


@cache
def _run_file(path: Path) -> Any:
    """Run a file, once, and return what it defines."""
    require(path.is_file(), f"there is no file {path}")
    name = f"fedfomo_method_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"{path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up the module that they are defined in
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # what lies beside it can be imported
    spec.loader.exec_module(module)
    return module


def _checked(name: str, found: Any) -> type[AnyAlgorithm]:
    is_algorithm = isinstance(found, type) and issubclass(found, Algorithm)
    is_complete = is_algorithm and "__dataclass_params__" in vars(found)
    require(is_complete, f"{name} is no dataclass that inherits from fedfomo.core.algorithm.Algorithm")
    return cast(type[AnyAlgorithm], found)
