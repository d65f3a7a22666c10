"""The methods by name: registering them, making them from names and options, describing them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

from fedfomo.algorithms.former_names import current_names
from fedfomo.algorithms.own_methods import find_own_algorithm
from fedfomo.core.algorithm import Algorithm, AnyAlgorithm
from fedfomo.core.options import option_types, read_option, written
from fedfomo.errors import InputError, require, unknown

AlgorithmClass = TypeVar("AlgorithmClass", bound=type[AnyAlgorithm])

ALGORITHMS: dict[str, type[AnyAlgorithm]] = {}
"""All registered methods; importing `fedfomo.algorithms` registers those of the library."""


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
    name, given = current_names(method, options or {}) if isinstance(method, str) else (method.__name__, options or {})
    algorithm = find_algorithm(name) if isinstance(method, str) else method
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
    found = ALGORITHMS.get(name) or find_own_algorithm(name)
    if found is None:
        raise unknown("method", name, ALGORITHMS)
    return found


@dataclass(frozen=True)
class Option:
    """One option of a method."""

    name: str
    default: Any
    help: str
    type: Any  # with its bounds: Annotated[float, Meta(ge=0)]


@dataclass(frozen=True)
class Description:
    """A method in a few words."""

    summary: str
    paper: str
    sends: str
    compute: str
    options: list[Option]


def describe(name: str) -> Description:
    """Describe a method: the first line of its docstring, its costs and its options."""
    algorithm = find_algorithm(name)
    texts = _field_docstrings(algorithm)
    types = option_types(algorithm)
    fields = {field.name: field.default for field in dataclasses.fields(algorithm)}  # type: ignore[arg-type]
    options = [Option(written(name), fields[name], texts.get(name, ""), kind) for name, kind in types.items()]
    summary = (inspect.getdoc(algorithm) or "").splitlines()[0]
    return Description(summary, algorithm.paper, algorithm.sends, algorithm.compute, options)


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
