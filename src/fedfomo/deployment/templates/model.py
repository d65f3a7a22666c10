"""The network that all sites train. The server and every site have the same copy of this file."""

from torch import nn


def make_model() -> nn.Module:
    """Build the architecture; any float32 module will do."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


# Optional: `loss`, the word "regression" or "multilabel", or a function loss(outputs, labels) that gives one value per
# example of a batch (without privacy, their mean will do), and with it metric(outputs, labels), one value per example,
# higher being better; without them it is cross-entropy and accuracy. INPUT_SHAPE = (3, 32, 32): with it, convolutions
# can run in the faster memory order. `trainer`, a fedfomo.Trainer with any torch optimiser; without it, sites train by
# SGD as the server's settings say. `share` or `keep`, lists of patterns such as "head.*": parameters that travel, or
# that every site keeps for itself; frozen ones never travel.
