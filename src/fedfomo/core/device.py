"""Where a network computes: the one place that knows of devices."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from fedfomo.errors import InputError, require

Precision = Literal["float32", "bf16"]


def resolve_device(name: str | torch.device | None) -> torch.device:
    """Return the device of a name, such as "cuda" or "cuda:1"; None is the CPU. Refuse one that cannot compute here."""
    if name is None:
        return torch.device("cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).cpu()  # the device "meta" exists and computes nothing
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch has no one word for it
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise InputError(f"device '{name}' cannot be used here ({reason}): choose cpu, or leave device out") from None
    return device


def available_cores() -> int:
    """Return how many cores this process may use, which may be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def workers_on(device: torch.device, asked: int | None, default: int) -> int:
    """Return how many worker processes compute: on an accelerator none, since forked processes cannot share one.

    Several sites then take turns on it, in one process.
    """
    if device.type == "cpu":
        return default if asked is None else asked
    require(not asked, f"{asked} workers cannot share {device}: give workers=0, and the sites take turns on it")
    return 0


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Let convolutions and matrix products inside compute in bfloat16, if that is the precision."""
    return nullcontext() if precision == "float32" else torch.autocast(device.type, torch.bfloat16)


def bfloat16_instructions() -> str | None:
    """Return the processor's instructions for bfloat16, which decide the order of sums; None: it has none."""
    if torch.cpu._is_amx_tile_supported():  # pyright: ignore[reportPrivateUsage]
        return "amx"
    return "avx512_bf16" if torch.cpu._is_avx512_bf16_supported() else None  # pyright: ignore[reportPrivateUsage]


def refuse_slow_bfloat16(device: torch.device) -> None:
    """Refuse bfloat16 on a processor that has no instructions for it: torch would emulate it, slower than float32."""
    require(
        device.type != "cpu" or bfloat16_instructions() is not None,
        "this processor has no bfloat16 instructions (avx512_bf16 or amx), so bf16 would be emulated and slower than"
        " float32: leave out amp and precision, or give an accelerator as device",
    )
