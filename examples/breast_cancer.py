"""Six hospitals learn to tell malignant tumours from benign ones, on the Wisconsin data that ship with scikit-learn.

Three hospitals see small tumours, two see large ones. The sixth, Bergen, has records of small tumours and is about to
open a ward for large ones: what it has is not what it needs. Run it with

    python examples/breast_cancer.py

and look at `breast_cancer/report.html`; `fedfomo check examples/breast_cancer.py` looks at the data before.
"""

from __future__ import annotations

import sys

import torch
from sklearn import datasets
from torch import Tensor, nn

import fedfomo

Records = tuple[Tensor, Tensor]  # measurements and labels
SMALL, LARGE = 0, 1
# What each hospital trains on, what it aims at, and how many records it has to train on.
HOSPITALS = {
    "Leeds": (SMALL, SMALL, 40),
    "Turin": (SMALL, SMALL, 40),
    "Lyon": (SMALL, SMALL, 15),
    "Porto": (LARGE, LARGE, 40),
    "Gdansk": (LARGE, LARGE, 40),
    "Bergen": (SMALL, LARGE, 25),
}
TARGET = 40  # records that a hospital judges by and is judged on, half and half


def load() -> tuple[Tensor, Tensor, Tensor]:
    """Return measurements, labels (1: malignant), and whether a tumour is small or large."""
    data = datasets.load_breast_cancer()
    measured = torch.tensor(data.data, dtype=torch.float32)
    radius = measured[:, 0]
    return measured, torch.tensor(data.target == 0).long(), (radius > radius.median()).long()


def sites() -> dict[str, tuple[Records, Records]]:
    """Deal the patients out: nobody is in two hospitals, or both in a hospital's records and in its target."""
    inputs, labels, sizes = load()
    rng = torch.Generator().manual_seed(0)
    order = torch.randperm(len(labels), generator=rng)
    left = {size: order[sizes[order] == size].tolist() for size in (SMALL, LARGE)}

    def take(size: int, number: int) -> Records:
        chosen, left[size] = left[size][:number], left[size][number:]
        return inputs[chosen], labels[chosen]

    return standardised(
        {name: (take(own, number), take(aim, TARGET)) for name, (own, aim, number) in HOSPITALS.items()}
    )


def standardised(dealt: dict[str, tuple[Records, Records]]) -> dict[str, tuple[Records, Records]]:
    """Bring all to one scale, by training records only; hospitals agree on it by telling their sums and squares.

    Scales of their own would not do: what is large in Bergen, which has small tumours only, is usual in Porto.
    """
    trained_on = torch.cat([train[0] for train, _ in dealt.values()])
    mean, deviation = trained_on.mean(dim=0), trained_on.std(dim=0)

    def scaled(records: Records) -> Records:
        return (records[0] - mean) / deviation, records[1]

    return {name: (scaled(train), scaled(target)) for name, (train, target) in dealt.items()}


def make_model() -> nn.Module:
    """Return a small network with BatchNorm."""
    return nn.Sequential(nn.Linear(30, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


if __name__ == "__main__":
    result = fedfomo.federate(make_model, sites(), rounds=12, trainer=fedfomo.Sgd(batch_size=10, epochs=2))
    print(result)
    folder = result.save(sys.argv[1] if len(sys.argv) > 1 else "breast_cancer")
    print(f"models and report are in {folder}")
