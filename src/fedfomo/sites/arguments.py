"""The arguments of `federate`: what is refused in words, and which runs they ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedfomo.algorithms import make_algorithm
from fedfomo.core.algorithm import Algorithm, AnyAlgorithm
from fedfomo.core.own_loop import as_trainer
from fedfomo.errors import InputError, require
from fedfomo.privacy.config import Privacy
from fedfomo.runs.config import label_of
from fedfomo.runs.run import absolute_method

NamedMethod = str | AnyAlgorithm | tuple[str, Mapping[str, Any]]
"""A method's name, an algorithm object, or a name with options."""


@dataclass(frozen=True)
class PlannedMethod:
    """A method that is to be run, and what its folders are called."""

    label: str
    name: str
    algorithm: AnyAlgorithm
    options: dict[str, Any]


def check_types(
    rounds: object, participation: object, seed: object, workers: object, trainer: object, privacy: object
) -> None:
    """Refuse, in words, what an annotation alone does not."""
    for name, value in (("rounds", rounds), ("seed", seed), ("workers", workers)):
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        require(is_whole or (name == "workers" and value is None), f"{name} must be a whole number, not {value!r}")
    is_number = isinstance(participation, int | float)
    require(is_number, f"participation must be a number above 0 and at most 1, not {participation!r}")
    if trainer is not None:
        as_trainer(trainer)
    is_privacy = privacy is None or isinstance(privacy, Privacy)
    require(is_privacy, f"privacy must be fedfomo.Privacy(noise=1.0) or another, not {privacy!r}")


def chosen_seeds(seed: int, seeds: Sequence[int] | None) -> list[int]:
    """Return the seeds that are meant, each once."""
    if seeds is None:
        return [seed]
    is_list = isinstance(seeds, Sequence) and all(isinstance(each, int) for each in seeds)  # pyright: ignore[reportUnnecessaryIsInstance]
    require(is_list and len(seeds) > 0, f"seeds must be some whole numbers, such as (0, 1, 2), not {seeds!r}")
    require(len(set(seeds)) == len(seeds), "a seed is given twice: it would count one run as two")
    return list(seeds)


def planned_methods(
    method: str | AnyAlgorithm, options: Mapping[str, Any] | None, baselines: Sequence[str]
) -> list[PlannedMethod]:
    """Return the method, training alone and the baselines, each once."""
    require(options is None or isinstance(options, Mapping), f"options are a mapping by name, not {options!r}")  # pyright: ignore[reportUnnecessaryIsInstance]
    if isinstance(method, str):
        algorithm, name, given = make_algorithm(method, options), absolute_method(method), dict(options or {})
    else:
        require(not options, "options go with the name of a method: an algorithm object has its own")
        algorithm, name = method, _name_of(method)
        given = {key: value for key, value in vars(method).items() if value is not None}
    plain = [
        PlannedMethod(label_of(each), absolute_method(each), make_algorithm(each), {})
        for each in dict.fromkeys(("local", *baselines))
    ]
    others = [other for other in plain if other.algorithm != algorithm]
    # The same method with and without options: both are run, in folders of their own.
    label = label_of(name) + ("-with-options" if name in [other.name for other in others] else "")
    return [PlannedMethod(label, name, algorithm, given), *others]


def named_methods(methods: Mapping[str, NamedMethod]) -> list[PlannedMethod]:
    """Return methods under names of the user's own, and training alone behind them."""
    is_mapping = isinstance(methods, Mapping) and len(methods) > 0  # pyright: ignore[reportUnnecessaryIsInstance]
    require(is_mapping, f'methods are methods by name, such as {{"fomo5": ("fedfomo", {{...}})}}, not {methods!r}')
    planned: list[PlannedMethod] = []
    for label, given in methods.items():
        is_name = label_of(f"{label}=fedfomo") == label
        require(is_name, f"'{label}' cannot name a method: use letters, digits, dots, hyphens and underscores")
        method, options = given if isinstance(given, tuple) else (given, {})
        require(isinstance(options, Mapping), f"options of '{label}' are a mapping by name, not {options!r}")  # pyright: ignore[reportUnnecessaryIsInstance]
        found, *_ = planned_methods(method, options, ())
        name = found.name if label_of(found.name) == label else f"{label}={found.name}"
        planned.append(PlannedMethod(label, name, found.algorithm, found.options))
    if "local" not in methods:
        planned.append(PlannedMethod("local", "local", make_algorithm("local"), {}))
    return planned


def _name_of(algorithm: object) -> str:
    require(not isinstance(algorithm, type), f"method must be an object: {algorithm!r} is a class, call it")
    if not isinstance(algorithm, Algorithm):
        raise InputError(f"method must be a name or an algorithm object, not {algorithm!r}")
    own = vars(type(algorithm)).get("name")  # what a class inherits is the name of another method
    return own or type(algorithm).__name__
