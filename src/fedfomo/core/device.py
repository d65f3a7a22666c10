"""Where a network computes: the one place that knows of devices."""

from __future__ import annotations

import torch

from fedfomo.errors import InputError, require


def resolve_device(name: str | torch.device | None) -> torch.device:
    """Return the device of a name, such as "cuda" or "cuda:1"; None is the CPU. Refuse one that is not there."""
    if name is None:
        return torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device {name!r} is unknown to torch ({error})") from None
    if device.type == "cpu":
        return torch.device("cpu")
    require(device.type != "meta", "the device meta holds no values: nothing can be trained there")
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:  # torch has no one word for it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"device {name!r} cannot be used here ({reason}): leave device= out, or give 'cpu'") from None
    return device


def is_accelerator(device: torch.device) -> bool:
    """Tell whether a device has memory of its own, which processes that were forked cannot share."""
    return device.type != "cpu"


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
