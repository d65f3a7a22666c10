"""Annotations promise no more than a message can carry, and numbers travel as they were declared."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

from fedfomo.core.message_schema import parse_annotation
from fedfomo.core.messages import Parameters, numbers_in, pack, unpack


@pytest.mark.parametrize(
    ("annotation", "way_out"),
    [
        (int | float, "give one type, or one type or None"),
        (int | float | None, "give one type, or one type or None"),
        (tuple[int, float], "give a dataclass"),
        (tuple[()], "give a dataclass"),
        (Mapping[str, float], "give integers as keys"),
        (tuple[int, ...] | None, "an empty one arrives as None"),
        (Mapping[int, float] | None, "an empty one arrives as None"),
        (list[int], "give tensors, numbers, tuples"),
    ],
)
def test_what_no_message_can_carry_is_refused_by_its_annotation(annotation: Any, way_out: str) -> None:
    with pytest.raises(TypeError, match=f"which no message can carry: {way_out}"):
        parse_annotation(annotation)


@pytest.mark.parametrize(
    "annotation", [int, float | None, tuple[Parameters, ...], tuple[int, int], Mapping[int, Tensor]]
)
def test_what_a_message_can_carry_is_read(annotation: Any) -> None:
    assert parse_annotation(annotation).what in ("scalar", "optional", "tuple", "mapping")


@dataclass(frozen=True)
class Counted:
    weight: float
    count: int
    best: float | None = None
    weights: tuple[float, ...] = ()


def test_numbers_travel_as_they_are_declared() -> None:
    given = Counted(5, 3, best=1, weights=(1, 2.5))
    found = unpack(Counted, pack(given))
    assert found == given
    assert [type(value) for value in (found.weight, found.count, found.best, *found.weights)] == [
        *(float, int, float, float, float)
    ]
    assert numbers_in(Counted, given) == numbers_in(Counted, found)


@pytest.mark.parametrize("count", [2.0, True])
def test_a_number_of_another_kind_is_refused_by_the_sender(count: Any) -> None:
    with pytest.raises(TypeError, match=f"'count' is a {type(count).__name__}, and the message declares int"):
        pack(Counted(0.5, count))
