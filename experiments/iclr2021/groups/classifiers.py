"""Classifiers on fixed features: how much the features tell of the labels, and what training on labels does to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from experiments.iclr2021.groups.imagenet_features import Features
from fedfomo.core.rng import layer_rng, stream

Labels = NDArray[np.int64]

_BATCH = 100
_LEAST_DEVIATION = 0.02


@dataclass(frozen=True)
class LabelledFeatures:
    """The features and labels of both parts of a data set; features have mean 0 and deviation 1 over training."""

    train: Features
    train_labels: Labels
    test: Features
    test_labels: Labels

    @classmethod
    def standardise(
        cls, train: Features, train_labels: Labels, test: Features, test_labels: Labels
    ) -> LabelledFeatures:
        """Bring every feature to mean 0 and deviation 1 over the training part."""
        # Some features hardly ever differ between digits: scaled up, the few exceptions would be outliers.
        mean, deviation = train.mean(0), np.maximum(train.std(0), _LEAST_DEVIATION) + 1e-6
        return cls((train - mean) / deviation, train_labels, (test - mean) / deviation, test_labels)


def linear_probe(data: LabelledFeatures, iterations: int = 60, decay: float = 0.01) -> float:
    """Return the test accuracy of logistic regression, with decay/2 · ‖weights‖² added to the mean loss."""
    inputs, labels = torch.from_numpy(data.train), torch.from_numpy(data.train_labels)
    layer = nn.Linear(inputs.shape[1], int(labels.max()) + 1)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimiser = torch.optim.LBFGS(
        layer.parameters(), max_iter=iterations, history_size=10, line_search_fn="strong_wolfe"
    )

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(layer(inputs), labels) + decay / 2 * layer.weight.square().sum()
        value.backward()
        return value

    optimiser.step(loss)
    return _accuracy(layer, data.test, data.test_labels)


def trained_hidden_layer(
    data: LabelledFeatures, width: int = 1024, epochs: int = 5, seed: int = 0
) -> tuple[float, Features, Features]:
    """Train a hidden layer and a classifier on the labels; return the test accuracy and both parts' activations.

    This is the cheapest fine-tuning: the convolutions stay as ImageNet made them. Activations are those after ReLU.
    """
    with layer_rng(stream(seed, "hidden layer", "initial weights")):
        hidden = nn.Sequential(nn.Linear(data.train.shape[1], width), nn.ReLU())
        network = nn.Sequential(hidden, nn.Dropout(0.5), nn.Linear(width, int(data.train_labels.max()) + 1))
        optimiser = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
        order = stream(seed, "hidden layer", "batches")
        inputs, labels = torch.from_numpy(data.train), torch.from_numpy(data.train_labels)
        for epoch in range(epochs):
            optimiser.param_groups[0]["lr"] = 0.01 * (1 - epoch / epochs)
            for batch in torch.randperm(len(inputs), generator=order).split(_BATCH):
                optimiser.zero_grad()
                nn.functional.cross_entropy(network(inputs[batch]), labels[batch]).backward()
                optimiser.step()
    network.eval()
    with torch.no_grad():
        activations = hidden(inputs).numpy(), hidden(torch.from_numpy(data.test)).numpy()
    return _accuracy(network, data.test, data.test_labels), *activations


def _accuracy(network: nn.Module, inputs: Features, labels: Labels) -> float:
    with torch.no_grad():
        return float((network(torch.from_numpy(inputs)).argmax(1).numpy() == labels).mean())
