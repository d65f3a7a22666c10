"""A client whose own training diverges is handed its last finite model."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.data import ClientData, Examples
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from toy_problems import points_problem, with_data


def _huge(client: int, data: ClientData) -> ClientData:
    """Let every step of one client end in what is no number."""
    inputs: Tensor = torch.full_like(data.train.inputs, 1e30)
    return replace(data, train=Examples(inputs, data.train.labels)) if client == 1 else data


@pytest.mark.parametrize("name", ALGORITHMS)
def test_who_diverges_ends_with_a_finite_model_and_so_does_everybody_else(name: str) -> None:
    if ALGORITHMS[name].uploads_examples:
        pytest.skip("it hands the broken examples to everybody")
    result = simulate(with_data(points_problem(), _huge), make_algorithm(name), SimulationConfig(rounds=2))
    assert all(bool(torch.isfinite(model).all()) for model in result.models.values())
