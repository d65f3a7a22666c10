"""20,000 images of 224 × 224 pixels in files, at four sites: the memory and time that federating them takes.

Memory is the sum over all processes of this program, of resident pages (each process counts what it shares) and of
proportional ones (shared pages count once). Every image is read at least once: sites train on half of their images,
judge models by a quarter and are tested on a quarter.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from measure import report
from PIL import Image

SIDE, SITES, CLASSES = 224, 4, 4
PART_NAMES = {"train": 2, "validation": 1, "test": 1}  # and their shares of a site's images
LIMIT_MB = 1500


def make_images(folder: Path, number: int) -> None:
    """Write JPEG files of one colour and a little noise, by site, part and class."""
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 216, size=(CLASSES, 3))
    noise = rng.integers(-20, 20, size=(16, SIDE, SIDE, 1))
    shares = [part for part, share in PART_NAMES.items() for _ in range(share)]
    for index in range(number):
        label = index // (SITES * len(shares)) % CLASSES
        place = folder / f"site-{index % SITES}" / shares[index // SITES % len(shares)] / f"colour-{label}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = colours[label] + rng.integers(-20, 20, size=3) + noise[index % len(noise)]
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{index}.jpg", quality=85)


class Memory(threading.Thread):
    """Looks four times a second at the memory of this process and of all that it started."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_resident = self.peak_proportional = 0.0
        self.most_processes = 0

    def run(self) -> None:
        """Watch until the process ends."""
        while True:
            sizes = [size for size in map(_megabytes, [os.getpid(), *_descendants(os.getpid())]) if size]
            self.peak_resident = max(self.peak_resident, sum(resident for resident, _ in sizes))
            self.peak_proportional = max(self.peak_proportional, sum(proportional for _, proportional in sizes))
            self.most_processes = max(self.most_processes, len(sizes))
            time.sleep(0.25)


def _descendants(parent: int) -> Iterator[int]:
    for task in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:  # it has ended
            continue
        for child in children:
            yield child
            yield from _descendants(child)


def _megabytes(process: int) -> tuple[float, float] | None:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:  # it has ended
        return None
    sizes = {line.split(":")[0]: float(line.split()[1]) / 1024 for line in lines}
    return sizes["Rss"], sizes["Pss"]


def main(number: int = 20_000, rounds: int = 1, workers: int = 2) -> None:
    """Federate images that are read from files, and measure memory and time."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_images(folder, number)
        memory = Memory()
        memory.start()
        import torch
        from torch import nn

        from fedfomo import Sgd, federate, load_sites
        from fedfomo.sites.image_folders import ImageFolder

        is_read = torch.zeros(number, dtype=torch.uint8).share_memory_()  # by any process
        plain = ImageFolder.__getitem__

        def noted(self: ImageFolder, index: int) -> tuple[torch.Tensor, int]:
            is_read[int(Path(self.paths[index]).stem)] = 1
            return plain(self, index)

        ImageFolder.__getitem__ = noted  # type: ignore[method-assign]

        def make_model() -> nn.Module:
            return nn.Sequential(
                *(nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()),
                *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)),
            )

        sites = load_sites(folder)
        started = time.perf_counter()
        trainer = Sgd(epochs=1, batch_size=32)
        result = federate(
            make_model, sites, rounds=rounds, trainer=trainer, workers=workers, baselines=(), progress=False
        )
        seconds = time.perf_counter() - started
        torch.set_num_threads(1)
        scores = [result.scores[site].metric for site in result.sites]
    report(
        "lazy_images",
        {
            "command": "make bench-images",
            "images": number,
            "pixels a side": SIDE,
            "sites": SITES,
            "rounds of FedFomo, and of training alone": rounds,
            "workers": workers,
            "megabytes, all processes, resident (peak)": memory.peak_resident,
            "megabytes, all processes, proportional (peak)": memory.peak_proportional,
            "megabytes, limit": LIMIT_MB,
            "processes": memory.most_processes,
            "megabytes, all images as one float tensor": number * 3 * SIDE * SIDE * 4 / 2**20,
            "seconds": seconds,
            "seconds of one core to read an image": _reading(),
            "mean accuracy": sum(scores) / len(scores),
            "images read at least once": int(is_read.sum()),
        },
    )
    if memory.peak_resident > LIMIT_MB:
        sys.exit(f"the peak of {memory.peak_resident:.0f} MB is above {LIMIT_MB} MB")


def _reading(repetitions: int = 50) -> float:
    from fedfomo.sites.image_folders import ImageFolder

    with tempfile.TemporaryDirectory() as name:
        make_images(Path(name), SITES)
        images = ImageFolder(next(Path(name).glob("*/*")))
        started = time.perf_counter()
        for _ in range(repetitions):
            images[0]
        return (time.perf_counter() - started) / repetitions


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
