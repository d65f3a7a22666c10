"""What is demanded of every message, on arrival at the server and again at the site that is to use it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.model import Score
from fedfomo.deployment.envelopes import Header

ECHOED = ("federation", "attempt", "round", "kind", "slot")
"""What an answer repeats of its order's header."""


def read_message(schema: Any, flat: Mapping[str, Tensor], limit: float) -> Any:
    """Rebuild a message of the wanted names, shapes and types; refuse models whose norm is beyond the limit.

    That numbers are finite, and models of the right size, is for `messages.fault_of` to say.
    """
    message = messages.unpack(schema, flat)
    for name, tensor in flat.items():
        if tensor.dtype == torch.float32 and float(torch.linalg.vector_norm(tensor.double())) > limit:
            raise messages.MessageError(f"'{name}' has a norm above {limit:.3g}")
    return message


def require_header(header: Header, wanted: Mapping[str, Any]) -> None:
    """Refuse what belongs to another federation, attempt, round or site."""
    for name, value in wanted.items():
        if header.get(name) != value:
            raise messages.MessageError(f"its {name} is {header.get(name)!r}, not {value!r}")


def read_score(content: Any) -> Score | None:
    """Read what a site says of its model; refuse anything else."""
    if content is None:
        return None
    names = [field.name for field in fields(Score)]
    is_score = isinstance(content, dict) and sorted(content) == sorted(names)  # pyright: ignore[reportUnknownArgumentType]
    if not (is_score and all(_is_number(content[name]) for name in names) and _is_count(content["num_examples"])):
        raise messages.MessageError("what it says of its model is no score")
    return Score(**content)


def _is_number(value: Any) -> bool:
    """Tell whether a value is a number that can be computed with and printed; it may be undefined."""
    return not math.isinf(value) if type(value) is float else _is_count(abs(value)) if type(value) is int else False


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def most_numbers(schema: Any, longest: int, num_clients: int) -> int:
    """Return how many numbers a message may hold: twice what the method could say in it."""
    return 2 * messages.max_elements(schema, longest, num_clients)


def require_parts(flat: Mapping[str, Tensor], *parts: str) -> None:
    """Refuse tensors that are not below one of these names."""
    for name in flat:
        if not name.startswith(tuple(part + "/" for part in parts)):
            raise messages.MessageError(f"unexpected tensor '{name}'")


def part_of(flat: Mapping[str, Tensor], name: str) -> messages.Flat:
    """Return the tensors below a name."""
    start = name + "/"
    return {key.removeprefix(start): tensor for key, tensor in flat.items() if key.startswith(start)}


def below(name: str, flat: Mapping[str, Tensor]) -> messages.Flat:
    """Put tensors below a name."""
    return {f"{name}/{key}": tensor for key, tensor in flat.items()}
