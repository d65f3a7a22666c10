"""A scalar world with two layers, for methods that treat layers differently.

θ is (body, head), the model predicts body + head, and a client's loss is (body + head − target)². A step of
`HALFWAY` moves each of the two by half of the gap to the target: one alone goes half of the way, both together all
of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedfomo.core.data import ClientData
from fedfomo.core.local_training import Sgd
from fedfomo.simulation.problem import FederatedProblem
from toy_problems import HALFWAY, Scalar, scalar_model, targets


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Scalar()
        self.head = Scalar()

    def forward(self, inputs: Tensor) -> Tensor:
        return self.body(inputs) + self.head(inputs)


def sum_problem(train_targets: Sequence[Sequence[float]], trainer: Sgd = HALFWAY) -> FederatedProblem:
    """Return a federation of clients with these training targets each, which starts at (0, 0)."""
    data = [ClientData(targets(*values), targets(0.0), targets(0.0)) for values in train_targets]
    return FederatedProblem(scalar_model(Sum()), torch.zeros(2), data, trainer, seed=0)
