"""The app's own business: a network, some data, training and scoring."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

Data = tuple[Tensor, Tensor]


def make_network() -> nn.Module:
    """Build the network."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition: int) -> tuple[Data, Data, Data]:
    """Return a node's training, validation and test data; half of the nodes see low digits, the others high ones."""
    digits = load_digits()
    inputs, labels = torch.tensor(digits.data / 16).float(), torch.tensor(digits.target)
    mine = ((labels < 5) == (partition % 2 == 0)) & (torch.arange(len(labels)) % 3 == partition // 2 % 3)
    inputs, labels = inputs[mine], labels[mine]
    return (inputs[::2], labels[::2]), (inputs[1::4], labels[1::4]), (inputs[3::4], labels[3::4])


def train(network: nn.Module, data: Data) -> None:
    """Train for five epochs."""
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(5):
        for inputs, labels in zip(data[0].split(20), data[1].split(20), strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(inputs), labels).backward()
            optimiser.step()


@torch.no_grad()
def score(network: nn.Module, data: Data) -> tuple[float, float]:
    """Return loss and accuracy."""
    outputs = network(data[0])
    return float(nn.functional.cross_entropy(outputs, data[1])), float((outputs.argmax(1) == data[1]).float().mean())
