"""What server and sites send each other: a header of plain values and tensors, as one string of bytes.

Models may travel with 8 or 16 bits per coordinate, the cure for bandwidth that the paper names. Every block of
coordinates is spread evenly between its smallest and largest value; rounding is to the nearest level, so the error of
a coordinate is at most half a step. What is not finite stays so, and is refused by whoever receives it. Every message
is checked on arrival at the server, and again at the site that is to use it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from safetensors.torch import load, save
from torch import Tensor

from fedfomo.core import messages
from fedfomo.core.archives import MOST_HEADER, header_length
from fedfomo.core.messages import Flat, MessageError
from fedfomo.core.metrics import Score

BLOCK = 1024  # coordinates that share a smallest and a largest value
RESTORED_AT_ONCE = 64  # blocks
PARTS = ("levels", "low", "step")
LEVELS = {8: torch.uint8, 16: torch.uint16}


def quantise(flat: Mapping[str, Tensor], bits: int) -> Flat:
    """Replace models by levels, smallest values and steps; leave all that is short as it is."""
    if bits not in LEVELS:
        return dict(flat)
    small: Flat = {}
    for name, tensor in flat.items():
        if tensor.dtype == torch.float32 and tensor.dim() == 1 and tensor.numel() >= BLOCK:
            small[f"{name}:levels"], small[f"{name}:low"], small[f"{name}:step"] = _to_levels(tensor, bits)
        else:
            small[name] = tensor
    return small


def restore(flat: Mapping[str, Tensor]) -> Flat:
    """Undo `quantise`, up to its error; refuse parts of nothing, and a model in both forms."""
    restored: Flat = {}
    for name, tensor in flat.items():
        owner, colon, part = name.rpartition(":")
        if not colon:
            restored[name] = tensor
        elif part not in PARTS or f"{owner}:levels" not in flat or owner in flat:
            raise MessageError(f"'{name}' is no part of a quantised form")
        elif part == "levels":
            restored[owner] = _from_levels(owner, flat)
    return restored


def _to_levels(tensor: Tensor, bits: int) -> tuple[Tensor, Tensor, Tensor]:
    blocks = _blocks(tensor.double())
    low, high = blocks.aminmax(dim=1)
    low, step = low.float(), ((high - low) / (2**bits - 1)).float()
    levels = (blocks - low.double()[:, None]) / step.double()[:, None]
    levels = torch.nan_to_num(levels).round().clamp(0, 2**bits - 1)  # a block of equal values has no step
    return levels.flatten()[: tensor.numel()].to(LEVELS[bits]), low, step


def _from_levels(name: str, flat: Mapping[str, Tensor]) -> Tensor:
    try:
        levels, low, step = (flat[f"{name}:{part}"] for part in PARTS)
    except KeyError:
        raise MessageError(f"'{name}' lacks a part of its quantised form") from None
    count = -(-levels.numel() // BLOCK)
    are_bounds = all(bound.dtype == torch.float32 and bound.shape == (count,) for bound in (low, step))
    if levels.dtype not in LEVELS.values() or levels.dim() != 1 or not are_bounds:
        raise MessageError(f"'{name}' is not of the quantised form")
    values = torch.empty(levels.numel())
    for block in range(0, count, RESTORED_AT_ONCE):  # in float64, a whole model would need four times its memory
        part, rows = slice(block * BLOCK, (block + RESTORED_AT_ONCE) * BLOCK), slice(block, block + RESTORED_AT_ONCE)
        restored = low[rows].double()[:, None] + _blocks(levels[part].double()) * step[rows].double()[:, None]
        values[part] = restored.flatten()[: levels[part].numel()]
    return values


def _blocks(vector: Tensor) -> Tensor:
    """Cut a vector into rows, the last one filled up with its last value."""
    missing = -vector.numel() % BLOCK
    return torch.cat((vector, vector[-1:].expand(missing))).view(-(-vector.numel() // BLOCK), BLOCK)


Header = dict[str, Any]


@dataclass(frozen=True)
class Envelope:
    """What one side tells the other."""

    header: Header
    tensors: Flat

    def to_bytes(self, bits: int = 32) -> bytes:
        """Spell the envelope out, with models of so many bits a coordinate."""
        header = json.dumps(self.header).encode()
        return len(header).to_bytes(4, "little") + header + save(_apart(quantise(self.tensors, bits)))

    @classmethod
    def read(cls, content: bytes, most: int | None = None) -> Envelope:
        """Read an envelope; refuse what is none, and one that holds more numbers than it may."""
        end = 4 + int.from_bytes(content[:4], "little")
        if max(end, header_length(content[end : end + 8])) > MOST_HEADER:
            raise MessageError("it is no envelope (its header is too long)")
        try:
            header = json.loads(content[4:end])
            tensors = load(content[end:])
        except Exception as error:  # whatever forged bytes make their reader raise
            raise MessageError(f"it is no envelope ({type(error).__name__}: {error})") from None
        count = sum(tensor.numel() for tensor in tensors.values())
        if most is not None and count > most:
            raise MessageError(f"it holds {count:,} numbers, more than {most:,}")
        if not isinstance(header, dict):
            raise MessageError("its header is no table")
        return cls(header, restore(tensors))


def most_bytes(most: int) -> int:
    """Return how long an envelope may be that holds at most so many numbers; none is longer than 8 bytes."""
    return 8 * most + 2 * MOST_HEADER


def digest_of(tensor: Tensor) -> str:
    """Hash a tensor's values."""
    return hashlib.sha256(tensor.contiguous().view(-1).numpy().data).hexdigest()


def _apart(flat: Mapping[str, Tensor]) -> Flat:
    """Give every tensor memory of its own, as the format demands; one model may be sent under two names."""
    seen: set[int] = set()
    apart: Flat = {}
    for name, tensor in flat.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in seen else tensor.contiguous()
        seen.add(place)
    return apart


ECHOED = ("federation", "experiment", "attempt", "round", "kind", "slot")
"""What an answer repeats of its request's header."""
MOST_METRICS = 20  # that a site may tell of
LONGEST_METRIC = 100  # characters of a name


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


MOST_EXAMPLES = 10**9
LARGEST = 1e9  # loss or metric that a site may report


def bounded(value: float) -> float:
    """Return a figure as a site reports it: what is beyond all bounds is undefined."""
    return value if abs(value) <= LARGEST else math.nan


def read_score(content: Any, is_share: bool = False) -> Score | None:
    """Read what a site says of its model; refuse anything else, and what no test examples can have given.

    Where the metric is a share of examples, such as accuracy, it lies between 0 and 1.
    """
    if content is None:
        return None
    fault = messages.MessageError("what it says of its model is no score")
    if not isinstance(content, dict):
        raise fault
    told = cast(dict[str, Any], content)
    metrics = told.get("metrics", {})
    is_score = sorted(set(told) - {"metrics"}) == ["loss", "metric", "num_examples"] and isinstance(metrics, dict)
    named = cast(dict[Any, Any], metrics) if is_score else {}
    is_named = len(named) <= MOST_METRICS and all(type(name) is str and len(name) <= LONGEST_METRIC for name in named)
    figures = [*(told[name] for name in ("loss", "metric", "num_examples")), *named.values()] if is_score else []
    if not (is_score and is_named and all(map(_is_number, figures)) and _is_count(told["num_examples"])):
        raise fault
    if is_share and not (math.isnan(told["metric"]) or 0 <= told["metric"] <= 1):
        raise messages.MessageError(f"it says that its model is right on {told['metric']:.3g} of its test examples")
    return Score.from_dict(told)


def _is_number(value: Any) -> bool:
    """Tell whether a value is a number that can be computed with and printed; it may be undefined."""
    return type(value) in (int, float) and not abs(value) > LARGEST


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MOST_EXAMPLES


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
