"""Random variations of images: what a small training set lacks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from fedfomo.errors import InputError

PADDING = 4


def crop_and_flip(
    images: Tensor, rng: torch.Generator, padding: int = PADDING, *, flip: bool = True, border: str = "constant"
) -> Tensor:
    """Shift each image by up to `padding` pixels either way, and mirror half of them, left to right.

    What comes in from outside is zero, or with the border "reflect" what lies inside.
    """
    require_images(images)
    count, channels, height, width = images.shape
    padded = functional.pad(images, [padding] * 4, mode=border).permute(0, 2, 3, 1)
    shifts = torch.randint(2 * padding + 1, (2, count, 1), generator=rng)
    rows = shifts[0] + torch.arange(height)
    columns = shifts[1] + torch.arange(width)
    if flip:
        is_mirrored = torch.rand(count, 1, generator=rng) < 0.5
        columns = torch.where(is_mirrored, columns.flip(1), columns)
    # Pixels are picked as rows of one long table: half the time of indexing images by three indices.
    firsts = torch.arange(count)[:, None, None] * padded.shape[1] * padded.shape[2]
    chosen = firsts + rows[:, :, None] * padded.shape[2] + columns[:, None, :]
    pixels = padded.reshape(-1, channels).index_select(0, chosen.flatten())
    # Channels come last in memory, which is what convolutions like best.
    return pixels.view(count, height, width, channels).permute(0, 3, 1, 2)


def require_images(inputs: Tensor) -> None:
    """Refuse inputs that cannot be shifted and mirrored."""
    if inputs.dim() != 4 or not inputs.is_floating_point():
        shape = "×".join(map(str, inputs.shape[1:]))
        raise InputError(
            f"augment shifts and mirrors images of channels × height × width, and these inputs are {shape or 'numbers'}"
            f" of {inputs.dtype}: leave it out, or give images"
        )
