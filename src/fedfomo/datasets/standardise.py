"""Bringing the channels of images to one scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedfomo.core.data import ClientData, Examples

DIGITS = 4


@dataclass(frozen=True)
class Scale:
    """Brings every channel of some images to mean 0 and deviation 1."""

    mean: Tensor  # (1, C, 1, 1), as is the deviation
    deviation: Tensor

    @staticmethod
    def of(images: Tensor) -> Scale:
        """Measure the channels of images."""
        deviation, mean = torch.std_mean(images, dim=(0, 2, 3), keepdim=True)
        return Scale(mean, deviation.clamp_min(1e-6))

    def rounded(self) -> Scale:
        """Return nearly the same scale, which is the same on every machine, in whatever order it adds up."""
        mean, deviation = (torch.round(part, decimals=DIGITS) for part in (self.mean, self.deviation))
        return Scale(mean, deviation.clamp_min(10**-DIGITS))

    def __call__(self, images: Tensor) -> Tensor:
        """Scale images."""
        return (images - self.mean) / self.deviation

    def applied_to(self, client: ClientData) -> ClientData:
        """Return a client whose inputs are scaled, all its parts alike."""
        parts = (client.train, client.validation, client.test)
        return ClientData(*(Examples(self(part.inputs), part.labels) for part in parts))

    def described(self) -> dict[str, list[float]]:
        """Return the numbers, by channel, for whoever is to scale inputs of their own."""
        return {
            name: [round(value, DIGITS) for value in part.flatten().tolist()]
            for name, part in (("mean", self.mean), ("deviation", self.deviation))
        }
