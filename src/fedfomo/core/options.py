"""Options of methods: bounded numbers and choices, and what to say of a value that is not one of them."""

from __future__ import annotations

import dataclasses
import keyword
import math
import re
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from fedfomo.errors import InputError, require

Count = Annotated[int, Meta(ge=1)]
"""A whole number of at least 1."""
CountOrZero = Annotated[int, Meta(ge=0)]
"""A whole number of at least 0."""
NonNegative = Annotated[float, Meta(ge=0)]
"""A number of at least 0."""
Positive = Annotated[float, Meta(gt=0)]
"""A number above 0."""
Fraction = Annotated[float, Meta(ge=0, le=1)]
"""A number between 0 and 1."""

_NUMBERS: dict[type, tuple[str, str]] = {
    bool: ("true or false", r"true|false"),
    int: ("a whole number", r"[+-]?\d+"),
    float: ("a number", r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"),
}


@cache
def option_types(cls: type) -> dict[str, Any]:
    """Return the annotated types of the fields of a dataclass, in their order; none for any other class."""
    if not dataclasses.is_dataclass(cls):
        return {}
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def field_of(option: str) -> str:
    """Return the field that holds an option; users write `lambda`, which is taken in Python."""
    name = option.replace("-", "_")
    return f"{name}_" if keyword.iskeyword(name) else name


def written(field: str) -> str:
    """Return how users write the option that a field holds."""
    return field.removesuffix("_")


def check_options(owner: str, values: Any) -> None:
    """Refuse a field whose value is not of its annotated type, or out of its bounds."""
    for name, hint in option_types(type(values)).items():
        value = getattr(values, name)
        read_option(f"option '{written(name)}' of {owner}", hint, value, from_text=False)


def read_option(what: str, hint: Any, value: Any, *, from_text: bool = True) -> Any:
    """Return a value as the option's type wants it; text, as a command line gives it, is read if that is allowed."""
    bounds = next((mark for mark in get_args(hint)[1:] if isinstance(mark, Meta)), None)
    kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if get_origin(kind) is Literal:
        choices = get_args(kind)
        require(value in choices, f"{what} must be one of {', '.join(map(str, choices))}, not '{value}'")
        return value
    if kind not in _NUMBERS:
        try:
            return msgspec.convert(value, hint, strict=not from_text)
        except msgspec.ValidationError as error:
            raise InputError(f"{what}: {error}") from None
    words, pattern = _NUMBERS[kind]
    is_kind = isinstance(value, str) if from_text else False
    is_kind = is_kind or isinstance(value, {bool: bool, int: int, float: (int, float)}[kind])
    is_kind = is_kind and not (isinstance(value, bool) and kind is not bool)
    text = str(value).lower()
    require(is_kind and re.fullmatch(pattern, text) is not None, f"{what} must be {words}, not '{value}'")
    read = text == "true" if kind is bool else kind(value)
    require(bounds is None or _is_within(bounds, read), f"{what} must be {_in_words(bounds)}, not {value}")
    return read


def _is_within(bounds: Meta, value: float) -> bool:
    return (
        (bounds.ge is None or value >= bounds.ge)
        and (bounds.gt is None or value > bounds.gt)
        and (bounds.le is None or value <= bounds.le)
        and (bounds.lt is None or value < bounds.lt)
        and math.isfinite(value)
    )


def _in_words(bounds: Meta | None) -> str:
    if bounds is None:
        return ""
    if bounds.ge is not None and bounds.le is not None:
        return f"between {bounds.ge} and {bounds.le}"
    marks = ((bounds.ge, "at least"), (bounds.gt, "above"), (bounds.le, "at most"), (bounds.lt, "below"))
    return " and ".join(f"{words} {limit}" for limit, words in marks if limit is not None)
