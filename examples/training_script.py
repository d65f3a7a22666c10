"""An ordinary training script of one site: images read from files one by one, random transforms, AdamW, AUC.

Run it with

    python examples/training_script.py

It writes the handwritten digits that ship with scikit-learn to `mail/`, one file for each image, for four sorting
offices, and trains a model for each office alone. The question is whether a post code begins with 0 to 4 or with 5 to
9. Two offices read images upside down, and Cork trains on upright images only. `federated_script.py` beside this file
makes a federation of it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn import datasets
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

OFFICES = {  # quarter turns of the images that an office trains on, and of those that it has to read
    "Galway": (0, 0),
    "Sligo": (2, 2),
    "Tralee": (2, 2),
    "Cork": (0, 2),
}
TRAIN, TARGET = 90, 250  # images of an office


class Mail(Dataset[tuple[Tensor, int]]):
    """The images in a folder; the first part of a file's name is its label."""

    def __init__(self, folder: str, transform: Callable[[Tensor], Tensor] | None = None) -> None:
        self.files = sorted(Path(folder).glob("*.npy"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        file = self.files[index]
        image = torch.from_numpy(np.load(file)).float()[None] / 16
        return (self.transform(image) if self.transform else image), int(file.name.partition("-")[0])


def augment(image: Tensor) -> Tensor:
    """Shift an image by up to a pixel, and add noise."""
    rows, columns = torch.randint(-1, 2, (2,)).tolist()
    return image.roll((rows, columns), (1, 2)) + 0.05 * torch.randn(image.shape)


def make_model() -> nn.Module:
    """Return a small convolutional network."""
    body = nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(*body, nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, 2))


def auc(outputs: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve; it is undefined if there is one class only."""
    is_defined = 0 < int(labels.sum()) < len(labels)
    return float(roc_auc_score(labels, outputs[:, 1] - outputs[:, 0])) if is_defined else math.nan


def write_mail(folder: Path) -> None:
    """Deal the digits out to the offices: each image belongs to one office, and there to training or to the target."""
    digits = datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.images))
    for number, (office, turns) in enumerate(OFFICES.items()):
        mine = order[number * (TRAIN + TARGET) :][: TRAIN + TARGET]
        for part, rows, turn in (("train", mine[:TRAIN], turns[0]), ("target", mine[TRAIN:], turns[1])):
            (folder / office / part).mkdir(parents=True, exist_ok=True)
            for row in rows:
                image = np.rot90(digits.images[row], turn).astype(np.uint8)
                np.save(folder / office / part / f"{int(digits.target[row] > 4)}-{row}.npy", image)


def train(office: str, epochs: int = 40) -> float:
    """Train a model for one office and return its AUC."""
    torch.manual_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for _ in range(epochs):
        for inputs, labels in DataLoader(Mail(f"mail/{office}/train", augment), batch_size=16, shuffle=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
    model.eval()
    inputs, labels = next(iter(DataLoader(Mail(f"mail/{office}/target"), batch_size=TARGET)))
    with torch.no_grad():
        return auc(model(inputs), labels)


if __name__ == "__main__":
    write_mail(Path("mail"))
    for office in sys.argv[1:] or OFFICES:
        print(f"{office}: AUC {train(office):.3f}")
