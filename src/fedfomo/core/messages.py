"""Any message or state ↔ one flat dict of tensors, and the check of what arrives.

A message is a frozen dataclass whose fields are tensors, numbers, tuples, mappings from integers, or further
such dataclasses. Its own annotations are the schema: a field marked `Parameters` must be float32, finite and as
long as the model, whoever sent it. Nothing here reads pickles or builds objects that the receiver did not ask for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar, cast

import torch
from torch import Tensor

from fedfomo.core.message_schema import (
    SCALARS,
    Schema,
    TensorSpec,
    joined,
    most_numbers,
    parse_annotation,
    scalar_tensor,
    tensors_of,
)

T = TypeVar("T")
Flat = dict[str, Tensor]


Parameters = Annotated[Tensor, TensorSpec("parameters", torch.float32, 1, is_model=True)]
"""A whole θ."""
Coordinates = Annotated[Tensor, TensorSpec("coordinates", torch.float32, 1)]
"""Some of the coordinates of a θ; whoever declares it checks how many."""
Numbers = Annotated[Tensor, TensorSpec("numbers", torch.float64, 1, is_column=True)]
"""Any number of float64 values."""
Table = Annotated[Tensor, TensorSpec("table", torch.float64, 2)]
"""A matrix of float64 values."""
Ids = Annotated[Tensor, TensorSpec("ids", torch.int64, 1, names_clients=True, is_column=True)]
"""Any number of client ids."""
Offsets = Annotated[Tensor, TensorSpec("offsets", torch.int64, 1)]
"""Places in a list."""

_CARRIED = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
"""What a tensor without a kind may hold."""


class MessageError(ValueError):
    """What arrived is not what the schema promises."""


def pack(message: Any) -> Flat:
    """Flatten a message; the tensors are the message's own, not copies."""
    flat: Flat = {}
    _flatten("", message, None, flat)
    return flat


def unpack(schema: type[T], flat: Mapping[str, Tensor]) -> T:
    """Rebuild a message of the wanted type; refuse anything missing, left over or of another kind."""
    remaining = dict(flat)
    message = _build("", parse_annotation(schema), remaining)
    if remaining:
        raise MessageError(f"unexpected field '{min(remaining)}'")
    return cast(T, message)


def validate(schema: Any, message: Any, model_size: int, num_clients: int) -> str | None:
    """Say what makes a received message unfit for use, or return None.

    Refused are numbers of another kind or not finite, counts below zero, models of another size, ids of clients that
    do not exist, and lists that stand side by side in one dataclass and differ in length.
    """
    if message is None and schema is not type(None):
        return "nothing arrived"
    lengths: dict[str, int] = {}
    for name, kind, tensor in tensors_of("", parse_annotation(schema), message):
        if (misfit := _misfit(name, kind, tensor)) is not None:
            return misfit
        if tensor.dtype == torch.int64 and tensor.dim() == 0 and int(tensor) < 0:
            return f"'{name}' is below zero"
        if tensor.is_floating_point() and not _is_finite(tensor):
            return f"'{name}' is not finite"
        if kind is not None:
            if kind.is_model and tensor.numel() != model_size:
                return f"'{name}' has {tensor.numel()} coordinates, the model has {model_size}"
            if kind.names_clients and not _is_between(tensor, 0, num_clients - 1):
                return f"'{name}' names a client that does not exist"
            owner, _, field = name.rpartition(".")
            has_neighbours = kind.is_column and field.isidentifier()  # unlike an item of a tuple or mapping
            if has_neighbours and lengths.setdefault(owner, tensor.numel()) != tensor.numel():
                return f"'{name}' has {tensor.numel()} entries, its neighbour {lengths[owner]}"
    return None


def has_nonfinite_model(message: Any) -> bool:
    """Tell whether any model in a message, or part of one, is not finite; other numbers may well be undefined."""
    return any(tensor.dtype == torch.float32 and not _is_finite(tensor) for tensor in pack(message).values())


def message_size(message: Any) -> tuple[int, int]:
    """Return what a message weighs on the wire: its float32 coordinates, and bytes in all."""
    coordinates = size = 0
    for tensor in pack(message).values():
        count = tensor.numel()
        size += count * tensor.element_size()
        coordinates += count if tensor.dtype == torch.float32 else 0
    return coordinates, size


def max_elements(schema: Any, longest: int, entries: int) -> int:
    """Return how many numbers a message may hold.

    No list, tuple or mapping has more than so many entries, and no other tensor is longer than the longest.
    """
    return most_numbers(parse_annotation(schema), longest, entries)


def numbers_in(schema: Any, message: Any) -> dict[str, Any]:
    """Return a message's numbers, lists and tables; no models, and no tensors without a kind, which may be data."""
    return {
        name: tensor.tolist()
        for name, kind, tensor in tensors_of("", parse_annotation(schema), message)
        if (tensor.dim() == 0 if kind is None else kind.dtype != torch.float32)
    }


def _flatten(name: str, value: Any, schema: Schema | None, into: Flat) -> None:
    inner = schema and (schema.inner or schema)  # an optional value is flattened by what it may be
    if isinstance(value, Tensor):
        into[name] = value.detach() if value.requires_grad else value
    elif value is None:
        return
    elif type(value) in SCALARS:
        into[name] = scalar_tensor(name, value, inner and inner.scalar)
    elif isinstance(value, tuple):
        for index, item in enumerate(cast(tuple[Any, ...], value)):
            _flatten(joined(name, index), item, inner, into)
    elif isinstance(value, dict):
        for key, item in cast(dict[int, Any], value).items():
            _flatten(joined(name, key), item, inner, into)
    elif dataclasses.is_dataclass(value):
        fields = parse_annotation(type(value)).fields
        for field, of in fields.items():
            _flatten(joined(name, field), getattr(value, field), of, into)
    else:
        raise TypeError(f"'{name}' is a {type(value).__name__}, which no message can carry")


def _build(name: str, schema: Schema, remaining: Flat) -> Any:
    inner = cast(Schema, schema.inner)
    match schema.what:
        case "tensor":
            tensor = _take(name, remaining)
            if (misfit := _misfit(name, schema.kind, tensor)) is not None:
                raise MessageError(misfit)
            return tensor
        case "scalar":
            tensor, scalar = _take(name, remaining), cast(type, schema.scalar)
            if tensor.dtype != SCALARS[scalar] or tensor.dim() != 0:
                raise MessageError(f"'{name}' is {_describe(tensor)}, not one {scalar.__name__}")
            return tensor.item()
        case "optional":
            present = any(key == name or key.startswith(name + ".") for key in remaining)
            return _build(name, inner, remaining) if present else None
        case "tuple":
            count = len(_keys_below(name, remaining))
            return tuple(_build(joined(name, index), inner, remaining) for index in range(count))
        case "mapping":
            keys = sorted(_keys_below(name, remaining))
            return {key: _build(joined(name, key), inner, remaining) for key in keys}
        case "dataclass":
            fields = schema.fields.items()
            return schema.make(**{field: _build(joined(name, field), of, remaining) for field, of in fields})
        case _:
            return None


def _keys_below(name: str, remaining: Flat) -> set[int]:
    prefix = name + "." if name else ""
    heads = {key[len(prefix) :].split(".", 1)[0] for key in remaining if key.startswith(prefix)}
    if not all(head.isdecimal() for head in heads):
        raise MessageError(f"'{name}' has fields that are not numbered")
    try:
        return {int(head) for head in heads}
    except ValueError:  # more digits than Python reads
        raise MessageError(f"'{name}' has fields that are not numbered") from None


def _take(name: str, remaining: Flat) -> Tensor:
    try:
        return remaining.pop(name)
    except KeyError:
        raise MessageError(f"field '{name}' is missing") from None


def _misfit(name: str, kind: TensorSpec | None, tensor: Tensor) -> str | None:
    """Say that a tensor is not of the kind declared for it, or of none that can be carried."""
    if kind is None:
        return None if tensor.dtype in _CARRIED else f"'{name}' is {_describe(tensor)}, which no message carries"
    fits = tensor.dtype == kind.dtype and tensor.dim() == kind.num_dimensions
    return None if fits else f"'{name}' is {_describe(tensor)}, not {kind.name}"


def _is_finite(tensor: Tensor) -> bool:
    # One pass without the temporaries of torch.isfinite, which leave holes in memory, one for every model kept.
    extremes = torch.aminmax(tensor) if tensor.numel() else ()
    return all(math.isfinite(extreme) for extreme in extremes)


def _is_between(tensor: Tensor, lowest: int, highest: int) -> bool:
    if not tensor.numel():
        return True
    least, most = torch.aminmax(tensor)
    return lowest <= int(least) and int(most) <= highest


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
