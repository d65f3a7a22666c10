"""The demo's sites: post offices whose scanners turn handwritten digits differently."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedfomo.core.data import Examples
from fedfomo.core.rng import stream
from fedfomo.datasets.bundled import load_digits

QUARTER_TURNS = {"upright": 0, "sideways": 1, "upside down": 2}
TRAIN = 80
TARGET = 219  # validation and test together; six offices use all images but three


@dataclass(frozen=True)
class PostOffice:
    """One site: how its training images lie, and how the images lie that it has to read."""

    name: str
    trains_on: str
    reads: str


# Kilrush, Tralee and Cork have new scanners, and labelled images of the old ones only.
OFFICES = (
    PostOffice("Galway", "upright", "upright"),
    PostOffice("Kilrush", "upright", "upside down"),
    PostOffice("Sligo", "upside down", "upside down"),
    PostOffice("Tralee", "upside down", "sideways"),
    PostOffice("Ennis", "sideways", "sideways"),
    PostOffice("Cork", "sideways", "upright"),
)


def post_office_sites() -> dict[str, tuple[Examples, Examples]]:
    """Return (training, target) examples by office: each image belongs to one office, and to one of the two."""
    digits = load_digits()
    everything = digits.train.joined(digits.test)
    order = torch.randperm(len(everything), generator=stream(0, "post offices"))
    shares = order.split(TRAIN + TARGET)
    return {
        office.name: (
            _turned(everything.take(share[:TRAIN]), QUARTER_TURNS[office.trains_on]),
            _turned(everything.take(share[TRAIN:]), QUARTER_TURNS[office.reads]),
        )
        for office, share in zip(OFFICES, shares, strict=False)
    }


def _turned(examples: Examples, quarter_turns: int) -> Examples:
    return Examples(torch.rot90(examples.inputs, quarter_turns, (2, 3)).contiguous(), examples.labels)
