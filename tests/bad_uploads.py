"""Uploads that a broken or hostile client could send: one honest upload, spoilt in every way that is known.

A spoilt upload is what travels, names and tensors, and the field that a refusal has to speak of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedfomo.core.messages import Flat

Change = Callable[[Tensor, torch.Generator], Tensor]

OTHER_TYPES = {
    "as float64": torch.float64,
    "as float32": torch.float32,
    "as float16": torch.float16,
    "as bfloat16": torch.bfloat16,
    "as int32": torch.int32,
    "as int64": torch.int64,
    "as uint8": torch.uint8,
    "as booleans": torch.bool,
    "as complex numbers": torch.complex64,
}


OPTIONAL = ("share.", "findings.share_of_averages")
"""Fields that may be missing: who sends no share gives none, and averages have no share where there are none."""


@dataclass(frozen=True)
class Spoilt:
    """One bad upload."""

    what: str
    field: str  # whose name a refusal says
    flat: Flat


def spoilt(honest: Flat, num_clients: int, rng: torch.Generator) -> list[Spoilt]:
    """Spoil an upload in every way that fits its fields."""
    cases = [Spoilt("a field too many", "more", {**honest, "more": torch.zeros(3)})]
    cases += [Spoilt("a name of 10,000 letters", "x" * 10_000, {**honest, "x" * 10_000: torch.zeros(1)})]
    for name, tensor in honest.items():
        cases += [Spoilt(what, name, {**honest, name: bad}) for what, bad in _bad(name, tensor, num_clients, rng)]
        without = {key: value for key, value in honest.items() if key != name}
        if not name.startswith(OPTIONAL):
            cases.append(Spoilt("missing", name, without))
            cases.append(Spoilt("renamed", name, {**without, name + "_": tensor}))
            cases.append(Spoilt("as a list of itself", name, {**without, f"{name}.0": tensor}))
    return cases


def _bad(name: str, tensor: Tensor, num_clients: int, rng: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    yield from ((what, tensor.to(dtype)) for what, dtype in OTHER_TYPES.items() if dtype != tensor.dtype)
    if tensor.dim() == 0:
        yield "as a list of one", tensor[None]
        yield "as nothing", tensor.new_empty(0)
        if tensor.dtype == torch.int64:
            yield "below zero", torch.tensor(-1)
            yield "far below zero", torch.tensor(-(2**63))
        if tensor.is_floating_point():
            yield from (("not finite", torch.full_like(tensor, value)) for value in (torch.nan, torch.inf, -torch.inf))
        return
    yield from _misshapen(name, tensor)
    if tensor.is_floating_point() and tensor.numel():
        yield from _not_finite(tensor, rng)
    if name.endswith("ids") or name == "collaborators":
        for what, stranger in (("a stranger", num_clients), ("id -1", -1), ("a huge id", 2**62)):
            yield what, torch.cat((tensor[:-1], torch.tensor([stranger])))
        yield "the same id twice", torch.cat((tensor[:-1], tensor[:1])) if len(tensor) > 1 else tensor.repeat(2)
    if name == "findings.increments" and tensor.numel():
        for value in (1e308, -1e308, 1.7e308, 1e101):
            yield f"weights of {value:g}", torch.full_like(tensor, value)
    if name == "findings.shares" and tensor.numel():
        for value in (1e308, -0.5, 1.5):
            yield f"shares of {value:g}", torch.full_like(tensor, value)


def _misshapen(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name.startswith("share."):  # examples may have any shape, as long as there is a label for each
        yield "one too few", tensor[:-1]
        yield "ten times as long", torch.cat([tensor] * 10) if len(tensor) else tensor.new_zeros(10, *tensor.shape[1:])
        return
    yield "transposed", tensor[None]
    yield "as a column", tensor[:, None] if tensor.dim() == 1 else tensor.T[..., None]
    yield "without its dimensions", tensor.new_zeros(())
    if tensor.numel() and name != "collaborators":  # whoever has fewer is welcome
        yield "empty", tensor.new_empty(0)
        yield "one too short", tensor[:-1]
    if tensor.numel():
        yield "ten times as long", torch.cat([tensor] * 10)
    yield "one too long", torch.cat((tensor, tensor.new_zeros(1)))


def _not_finite(tensor: Tensor, rng: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    for value in (torch.nan, torch.inf, -torch.inf):
        yield f"all {value}", torch.full_like(tensor, value)
        for what, place in (("one", int(torch.randint(len(tensor), (), generator=rng))), ("the last", -1)):
            one = tensor.clone()
            one[place] = value
            yield f"{what} {value}", one
