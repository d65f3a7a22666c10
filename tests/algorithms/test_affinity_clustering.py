"""Groups read off an affinity matrix."""

import pytest
import torch
from torch import Tensor

from fedfomo.algorithms.clustering import group_by_affinity
from fedfomo.core.rng import stream
from toy_problems import numbers


def planted(groups: list[int], noise: float = 0.0, scale: float = 1.0) -> Tensor:
    """Let everybody value the own group at +1 and the others at −5, with noise."""
    of = torch.tensor(groups)
    values = torch.where(of[:, None] == of[None, :], 1.0, -5.0).double()
    return scale * (values + noise * torch.randn(values.shape, generator=stream(0), dtype=torch.float64))


def partition(labels: list[int]) -> set[frozenset[int]]:
    return {frozenset(n for n, of in enumerate(labels) if of == label) for label in set(labels)}


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
@pytest.mark.parametrize("groups", [[0, 0, 0, 1, 1, 1], [0, 1, 2] * 5, [0, 1, 0, 1, 1, 2, 2, 0]])
def test_planted_groups_are_found_whatever_the_scale(groups: list[int], scale: float) -> None:
    found = group_by_affinity(planted(groups, noise=0.5, scale=scale), max(groups) + 1)
    assert partition(found) == partition(groups)


def test_rows_of_different_scales_count_alike() -> None:
    groups = [0, 1] * 4
    rows = torch.logspace(-3, 3, 8, dtype=torch.float64)[:, None]
    assert partition(group_by_affinity(rows * planted(groups, noise=0.5), 2)) == partition(groups)


def test_how_much_a_client_values_itself_is_irrelevant() -> None:
    groups = [0, 0, 0, 1, 1, 1]
    matrix = planted(groups, noise=0.5)
    matrix.fill_diagonal_(1e9)
    assert partition(group_by_affinity(matrix, 2)) == partition(groups)


def test_one_group_is_everybody() -> None:
    assert group_by_affinity(planted([0, 1, 1]), 1) == [0, 0, 0]
    assert group_by_affinity(torch.eye(1).double(), 4) == [0]


def test_two_clients_are_together_or_apart() -> None:
    matrix = torch.stack((numbers(1, 5), numbers(5, 1)))
    assert group_by_affinity(matrix, 1) == [0, 0]
    assert group_by_affinity(matrix, 2) == [0, 1]
    assert group_by_affinity(matrix, 9) == [0, 1]


def test_without_any_preference_everybody_still_gets_a_group() -> None:
    found = group_by_affinity(torch.eye(6, dtype=torch.float64), 2)
    assert len(found) == 6
    assert set(found) <= {0, 1}


def test_the_matrix_is_left_as_it_was() -> None:
    matrix = planted([0, 0, 1, 1], noise=0.5)
    kept = matrix.clone()
    group_by_affinity(matrix, 2)
    assert torch.equal(matrix, kept)
