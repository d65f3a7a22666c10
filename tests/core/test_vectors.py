"""Arithmetic on models as vectors."""

import pytest
import torch

from fedfomo.core.rng import stream
from fedfomo.core.vectors import first_of_largest, without


@pytest.mark.parametrize("number", [1, 3, 10, 40, 99, 100, 150])
@pytest.mark.parametrize("kinds", [1, 2, 5, 1000])
def test_the_first_of_the_largest_are_those_of_a_stable_sort(number: int, kinds: int) -> None:
    for seed in range(20):
        values = torch.randint(-kinds, kinds, (100,), generator=stream(seed)).double() * (torch.arange(100) % 3 == 0)
        wanted = torch.argsort(values, descending=True, stable=True)[:number]
        assert first_of_largest(values, number).tolist() == wanted.tolist()
        order = torch.randperm(100, generator=stream(seed, "order"))
        wanted = order[torch.argsort(values[order], descending=True, stable=True)][:number]
        assert first_of_largest(values, number, order).tolist() == wanted.tolist()


def test_of_nothing_nothing_is_first() -> None:
    assert first_of_largest(torch.empty(0), 10).tolist() == []


@pytest.mark.parametrize(("value", "rest"), [(2, [5, 9]), (5, [2, 9]), (9, [2, 5]), (0, [2, 5, 9]), (10, [2, 5, 9])])
def test_without_one_the_others_stay(value: int, rest: list[int]) -> None:
    assert without(torch.tensor([2, 5, 9]), value).tolist() == rest
    assert without(torch.empty(0, dtype=torch.int64), value).tolist() == []
