"""Where a network computes: the one place that knows of devices."""

from __future__ import annotations

import torch

from fedfomo.errors import InputError, require


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


def workers_on(device: torch.device, asked: int | None, default: int) -> int:
    """Return how many worker processes compute: on an accelerator none, since forked processes cannot share one.

    Several sites then take turns on it, in one process.
    """
    if device.type == "cpu":
        return default if asked is None else asked
    require(not asked, f"{asked} workers cannot share {device}: give workers=0, and the sites take turns on it")
    return 0


def refuse_slow_bfloat16(device: torch.device) -> None:
    """Refuse bfloat16 on a processor that has no instructions for it: torch would emulate it, slower than float32."""
    if device.type != "cpu":
        return
    has_instructions = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]
    require(
        has_instructions,
        "this processor has no bfloat16 instructions (avx512_bf16 or amx), so bf16 would be emulated and slower than"
        " float32: leave out amp and precision, or give an accelerator as device",
    )
