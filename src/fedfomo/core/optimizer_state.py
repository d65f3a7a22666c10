"""The state of a torch optimiser and its schedule as named tensors: what a client keeps is read without pickle."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedfomo.errors import InputError

PLAIN = "plain"  # the name under which everything but tensors is kept, as JSON


def encode_state(optimizer: Optimizer, schedule: LRScheduler | None) -> dict[str, Tensor]:
    """Return both states; refuse values that are neither tensors nor plain."""
    tensors: dict[str, Tensor] = {}
    states = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict() if schedule else {}}
    try:
        text = json.dumps(_encoded(states, tensors))
    except TypeError as error:
        raise InputError(
            f"the state of {type(optimizer).__name__} or its schedule cannot be kept ({error}): give keep_state=False"
        ) from None
    return {PLAIN: torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).clone(), **tensors}


def load_state(optimizer: Optimizer, schedule: LRScheduler | None, kept: Mapping[str, Tensor]) -> None:
    """Bring an optimiser and a schedule of the same making back to a state."""
    states = _decoded(json.loads(kept[PLAIN].numpy().tobytes()), kept)
    optimizer.load_state_dict(states["optimizer"])
    if schedule is not None:
        schedule.load_state_dict(states["schedule"])


def _encoded(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True)
        return {"tensor": name}
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, Counter) else "pairs"  # JSON would turn numbers that are keys into texts
        return {kind: [[_encoded(part, tensors) for part in pair] for pair in cast(Mapping[Any, Any], value).items()]}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_encoded(part, tensors) for part in cast(list[Any], value)]}
    return value


def _decoded(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = cast(dict[str, Any], value).items()
    if kind == "tensor":
        return tensors[content].clone()
    if kind in ("pairs", "counter"):
        pairs = {_decoded(key, tensors): _decoded(part, tensors) for key, part in content}
        return Counter(pairs) if kind == "counter" else pairs
    parts = [_decoded(part, tensors) for part in content]
    return tuple(parts) if kind == "tuple" else parts
