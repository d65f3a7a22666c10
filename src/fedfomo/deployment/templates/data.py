"""What this site trains on, and what it wants a model for. Nothing of it leaves the site."""

from pathlib import Path

import torch

from fedfomo.core.rng import stream
from fedfomo.datasets.bundled import load_digits


def load_data(folder: Path | None, site: str):
    """Return (train, target), each (inputs, labels); half of the target judges models, the other half tests them.

    `folder` is what --data says. Replace this by your own: here, some of the digits that ship with scikit-learn,
    others at every site.
    """
    digits = load_digits()
    labels = torch.randperm(10, generator=stream(0, site))[:4]
    train, test = digits.train, digits.test
    mine = [torch.isin(part.labels, labels) for part in (train, test)]
    return (train.inputs[mine[0]], train.labels[mine[0]]), (test.inputs[mine[1]], test.labels[mine[1]])
