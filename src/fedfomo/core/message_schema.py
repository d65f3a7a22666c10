"""What a message may hold, read from its own annotations, and the walk over a message beside its schema."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

SCALARS: dict[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}
"""How plain numbers travel."""


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor field may hold."""

    name: str
    dtype: torch.dtype
    num_dimensions: int
    is_model: bool = False
    names_clients: bool = False
    is_column: bool = False  # of a table: as long as its neighbours


@dataclass(frozen=True)
class Schema:
    """An annotation, understood once: one of tensor, scalar, none, optional, tuple, mapping, dataclass."""

    what: str
    kind: TensorSpec | None = None
    scalar: type | None = None
    inner: Schema | None = None
    make: Callable[..., Any] = dict
    fields: Mapping[str, Schema] = dataclasses.field(default_factory=dict[str, "Schema"])


@cache
def parse_annotation(annotation: Any) -> Schema:
    """Read an annotation; refuse what no message can carry."""
    origin = get_origin(annotation)
    if annotation is type(None):
        return Schema("none")
    if origin is Annotated or annotation is Tensor:
        marks = get_args(annotation)[1:]
        return Schema("tensor", kind=next((mark for mark in marks if isinstance(mark, TensorSpec)), None))
    if annotation in SCALARS:
        return Schema("scalar", scalar=annotation)
    if origin in (Union, types.UnionType):
        return Schema("optional", inner=_schema_of_option(annotation))
    if origin is tuple:
        kinds = {item for item in get_args(annotation) if item is not ...}
        if len(kinds) != 1:
            raise _refusal(annotation, "give a dataclass, which has a field for each")
        return Schema("tuple", inner=parse_annotation(kinds.pop()))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        key, *values = get_args(annotation)
        if key is not int:
            raise _refusal(annotation, "give integers as keys")
        return Schema("mapping", inner=parse_annotation(*values))
    if dataclasses.is_dataclass(annotation):
        hints = get_type_hints(annotation, include_extras=True)
        fields = {name: parse_annotation(hints[name]) for name in field_names(cast(type, annotation))}
        return Schema("dataclass", make=cast(type, annotation), fields=fields)
    raise _refusal(annotation, "give tensors, numbers, tuples, mappings from integers, or dataclasses of these")


def _schema_of_option(annotation: Any) -> Schema:
    options = [option for option in get_args(annotation) if option is not type(None)]
    if len(options) != 1 or len(get_args(annotation)) != 2:
        raise _refusal(annotation, "give one type, or one type or None")
    inner = parse_annotation(options[0])
    if inner.what in ("tuple", "mapping"):
        raise _refusal(annotation, "an empty one arrives as None: leave out None")
    return inner


def _refusal(annotation: Any, way_out: str) -> TypeError:
    return TypeError(f"{annotation} is declared in a message, which no message can carry: {way_out}")


def scalar_tensor(name: str, value: Any, scalar: type | None) -> Tensor:
    """Return a plain number as it travels: as the schema says, or by its own type where there is none."""
    scalar = scalar or type(value)
    if type(value) is not scalar and (scalar, type(value)) != (float, int):
        raise TypeError(f"'{name}' is a {type(value).__name__}, and the message declares {scalar.__name__}")
    return torch.tensor(value, dtype=SCALARS[scalar])


def most_numbers(schema: Schema, longest: int, entries: int) -> int:
    """Return how many numbers fit into it, if no list has more than so many entries and no tensor is longer."""
    match schema.what:
        case "none":
            return 0
        case "scalar":
            return 1
        case "tensor":
            return entries if schema.kind is not None and schema.kind.is_column else longest
        case "dataclass":
            return sum(most_numbers(field, longest, entries) for field in schema.fields.values())
        case _:
            each = most_numbers(cast(Schema, schema.inner), longest, entries)
            return each if schema.what == "optional" else each * entries


def tensors_of(name: str, schema: Schema, value: Any) -> Iterator[tuple[str, TensorSpec | None, Tensor]]:
    """Walk a message beside its schema and yield every tensor with the kind declared for it."""
    inner = cast(Schema, schema.inner)
    if value is None:
        return
    match schema.what:
        case "tensor":
            yield name, schema.kind, value
        case "scalar":
            yield name, None, scalar_tensor(name, value, schema.scalar)
        case "optional":
            yield from tensors_of(name, inner, value)
        case "tuple":
            for index, item in enumerate(value):
                yield from tensors_of(joined(name, index), inner, item)
        case "mapping":
            for key, item in value.items():
                yield from tensors_of(joined(name, key), inner, item)
        case _:
            for field, of in schema.fields.items():
                yield from tensors_of(joined(name, field), of, getattr(value, field))


@cache
def field_names(message: type) -> tuple[str, ...]:
    """Return the fields of a dataclass, in order."""
    return tuple(field.name for field in dataclasses.fields(message))


def joined(name: str, part: str | int) -> str:
    """Return the name of a part of what has a name, or none."""
    return f"{name}.{part}" if name else str(part)
