"""The methods by name: registering and finding them, making them from names and options, describing them.

A name is that of a method of the library or of an installed package, or `path/to/file.py:Class`.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, cast

from fedfomo.algorithms.former_names import current_names
from fedfomo.core.algorithm import Algorithm, AnyAlgorithm
from fedfomo.core.method_names import ENTRY_POINTS, Description, Option, method_of
from fedfomo.core.options import option_types, read_option, written
from fedfomo.core.user_code import load_user_module
from fedfomo.errors import InputError, listed, require, unknown

AlgorithmClass = TypeVar("AlgorithmClass", bound=type[AnyAlgorithm])

ALGORITHMS: dict[str, type[AnyAlgorithm]] = {}
"""All registered methods; importing `fedfomo.algorithms` registers those of the library."""

_run_once = cache(load_user_module)  # running a file again would make other classes of the same names


def register(name: str, paper: str = "") -> Callable[[AlgorithmClass], AlgorithmClass]:
    """Register a class, a frozen dataclass, under the name by which commands and files call it."""

    def decorate(algorithm: AlgorithmClass) -> AlgorithmClass:
        if "__dataclass_params__" not in vars(algorithm):
            raise TypeError(f"{algorithm.__name__} must be decorated with @dataclass(frozen=True), below @register")
        if name in ALGORITHMS:
            raise ValueError(f"there is a method '{name}' already: {ALGORITHMS[name].__qualname__}")
        algorithm.name, algorithm.paper = name, paper
        ALGORITHMS[name] = algorithm
        return algorithm

    return decorate


def make_algorithm(
    method: str | type[AnyAlgorithm] | AnyAlgorithm, options: Mapping[str, Any] | None = None
) -> AnyAlgorithm:
    """Make a method from its name and options; values may be text, as a command line gives them.

    A name is that of a registered method, of an entry point of the group `fedfomo.algorithms`, or the place of a class
    in a file, `my_methods.py:MyMethod`. A class is made with the options, and a method that has been made is returned.
    """
    if isinstance(method, Algorithm):
        require(not options, f"options of {type(method).__name__} are set where it is made")
        return method
    if isinstance(method, str):
        name, given = current_names(method_of(method), options or {})
        algorithm = find_algorithm(name)
    else:
        name, given, algorithm = method.__name__, options or {}, method
    types = option_types(algorithm)
    values: dict[str, Any] = {}
    for option, value in given.items():
        if option not in types:
            if not types:
                raise InputError(f"method '{name}' has no options, but '{option}' was given")
            raise unknown("option", option, [written(field) for field in types], f"of method '{name}'")
        values[option] = read_option(f"option '{written(option)}' of method '{name}'", types[option], value)
    return algorithm(**values)


def find_algorithm(name: str) -> type[AnyAlgorithm]:
    """Return the class of a method: by its name, or as `path/to/file.py:Class`."""
    name = method_of(name)
    found = ALGORITHMS.get(name) or find_own_algorithm(name)
    if found is None:
        raise unknown("method", name, ALGORITHMS)
    return found


def file_of(name: str) -> Path | None:
    """Return the Python file that a method comes from; None: it is a method of the library or of a package."""
    path, colon, _ = method_of(name).rpartition(":")
    return Path(path) if colon and path.endswith(".py") else None


@cache
def find_own_algorithm(name: str) -> type[AnyAlgorithm] | None:
    """Return the class that a file or a package has for a method, if there is one."""
    file = file_of(name)
    if file is None:
        entries = entry_points(group=ENTRY_POINTS, name=name)
        return _checked(name, _load(*entries)) if entries else None
    word = name.rpartition(":")[2]
    module = _run_once(file.absolute())
    if not hasattr(module, word):
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
        raise InputError(f"{file} defines no class {word}; it has {listed(own) or 'none'}")
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


def describe(name: str) -> Description:
    """Describe a method: the first line of its docstring, its costs and its options."""
    algorithm = find_algorithm(name)
    texts = _field_docstrings(algorithm)
    types = option_types(algorithm)
    fields = {field.name: field.default for field in dataclasses.fields(algorithm)}  # type: ignore[arg-type]
    options = [Option(written(name), fields[name], texts.get(name, ""), kind) for name, kind in types.items()]
    summary = (inspect.getdoc(algorithm) or "").splitlines()[0]
    paper = vars(algorithm).get("paper", "")  # what a class inherits is another method's
    return Description(summary, paper, algorithm.sends, algorithm.compute, options)


def _field_docstrings(algorithm: type) -> dict[str, str]:
    """Read the texts below the fields of a dataclass and of those it inherits from, which Python itself forgets."""
    texts: dict[str, str] = {}
    for cls in reversed(algorithm.__mro__):
        if "__dataclass_params__" not in vars(cls):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        for field, text in pairwise(body.body if isinstance(body, ast.ClassDef) else []):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
                texts[field.target.id] = str(ast.literal_eval(text.value))
    return texts
