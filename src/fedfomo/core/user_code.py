"""A user's own Python files, run as Python would run them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

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
