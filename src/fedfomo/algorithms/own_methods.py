"""Methods that are not part of the library: `path/to/file.py:Class`, and those that installed packages bring along."""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, cast

from fedfomo.core.algorithm import Algorithm, AnyAlgorithm
from fedfomo.core.user_code import load_user_module
from fedfomo.errors import InputError, require

ENTRY_POINTS = "fedfomo.algorithms"
"""The group of entry points in which packages name their methods."""

_run_once = cache(load_user_module)  # running a file again would make other classes of the same names


def file_of(name: str) -> Path | None:
    """Return the Python file that a method comes from; None: it is a method of the library or of a package."""
    path, colon, _ = name.rpartition(":")
    return Path(path) if colon and path.endswith(".py") else None


def installed_methods() -> list[str]:
    """Return the names of the methods that installed packages bring along."""
    return sorted(entry_points(group=ENTRY_POINTS).names)


@cache
def find_own_algorithm(name: str) -> type[AnyAlgorithm] | None:
    """Return the class that a file or a package has for a method, if there is one."""
    file = file_of(name)
    if file is None:
        entries = entry_points(group=ENTRY_POINTS, name=name)
        return _checked(name, _load(*entries)) if entries else None
    word = name.rpartition(":")[2]
    module = _run_once(file.absolute())
    require(hasattr(module, word), f"{file} defines no class {word}")
    return _checked(name, getattr(module, word))


def _load(entry: EntryPoint, *_: EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist else "a package"
        raise InputError(f"method '{entry.name}' of {package}: {entry.value} cannot be imported: {error}") from error


def _checked(name: str, found: Any) -> type[AnyAlgorithm]:
    is_algorithm = isinstance(found, type) and issubclass(found, Algorithm)
    is_complete = is_algorithm and "__dataclass_params__" in vars(found)
    require(is_complete, f"{name} is no dataclass that inherits from fedfomo.core.algorithm.Algorithm")
    return cast(type[AnyAlgorithm], found)
