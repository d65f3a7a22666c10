"""Intervals, worked by hand or against published tables."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedfomo.report.intervals import (
    of_difference,
    of_mean,
    of_mean_gap,
    of_share,
    of_unpaired_difference,
    student,
)


def test_wilson_of_eight_in_ten() -> None:
    # (0.8 + 0.19208) / 1.38415 = 0.71674, and 1.96 √(0.016 + 0.0096037) / 1.38415 = 0.22658.
    found = of_share(0.8, 10)
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.49016, 0.94331), abs=1e-4)


def test_all_right_is_not_certain() -> None:
    assert of_share(1.0, 24).low == pytest.approx(0.862, abs=1e-3)
    assert of_share(1.0, 24).high == 1.0


def test_two_models_that_agree_on_few_examples_may_still_differ() -> None:
    found = of_difference([1.0] * 10, [1.0] * 10)
    # Half an example in each cell: √(1/12) / √12 · 1.96 = 0.1633.
    assert (found.value, found.low, found.high) == pytest.approx((0.0, -0.1633, 0.1633), abs=1e-4)


def test_a_paired_difference_of_ones_and_zeros() -> None:
    ours, theirs = [1.0] * 9 + [0.0] * 11, [1.0] * 1 + [0.0] * 19
    found = of_difference(ours, theirs)  # 8 better, none worse, of 20
    centre, reach = 8 / 22, 1.959964 * math.sqrt(9 / 22 - (8 / 22) ** 2) / math.sqrt(22)
    assert (found.value, found.low, found.high) == pytest.approx((0.4, centre - reach, centre + reach))
    assert found.is_above_zero


def test_pairing_narrows() -> None:
    ours = [float(k % 10 != 0) for k in range(200)]
    theirs = [float(k % 10 not in (0, 1)) for k in range(200)]
    paired = of_difference(ours, theirs)
    unpaired = of_unpaired_difference(of_mean(ours), of_mean(theirs))
    assert paired.value == pytest.approx(unpaired.value)
    assert unpaired.low < paired.low < paired.high < unpaired.high


def test_unpaired_is_not_too_narrow_where_models_err_on_different_examples() -> None:
    ours = [float(k % 2) for k in range(200)]
    theirs = [1 - figure for figure in ours]
    paired = of_difference(ours, theirs)
    unpaired = of_unpaired_difference(of_mean(ours), of_mean(theirs))
    # Every example differs, so the reach is nearly twice that of one model's score, and not √2 of it.
    assert unpaired.high == pytest.approx(paired.high, rel=0.01)
    assert unpaired.low == pytest.approx(paired.low, rel=0.01)


def test_any_other_metric_has_students_interval() -> None:
    found = of_difference([1.5, 2.5, 3.5], [1.0, 1.0, 2.0])  # gaps 0.5, 1.5, 1.5
    assert found.value == pytest.approx(7 / 6)
    assert found.high - found.value == pytest.approx(student(2) * math.sqrt(1 / 3) / math.sqrt(3))


@pytest.mark.parametrize("figures", [[1.0] * 6, [0.5, 0.51, 0.52] * 2])
def test_five_examples_decide_nothing_and_six_may(figures: list[float]) -> None:
    for number, decides in ((2, False), (5, False), (6, True)):
        ours, theirs = figures[:number], [0.0] * number
        agreed = [0.0] * 4
        for found in (of_difference(ours, theirs), of_difference(ours + agreed, theirs + agreed)):
            assert found.is_above_zero is decides
            assert found.low <= found.value <= found.high
        assert of_difference(theirs, ours).is_below_zero is decides


def test_gaps_that_are_all_the_same_show_no_spread() -> None:
    for number in (1, 2, 9):
        found = of_mean_gap([0.1] * number)
        assert found.value == pytest.approx(0.1)
        assert not found.has_interval
        assert not found.is_above_zero


PUBLISHED = [*enumerate((12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201), 1)]


@pytest.mark.parametrize(("freedom", "published"), [*PUBLISHED, (30, 2.042), (1000, 1.962)])
def test_students_t_is_that_of_the_tables(freedom: int, published: float) -> None:
    assert student(freedom) == pytest.approx(published, abs=0.001)


def test_two_seeds_say_little() -> None:
    # Gaps 1 and 3: their mean is 2, its standard error √2 / √2 = 1, and tan(0.475 π) = 12.7062 the point of one degree.
    found = of_mean_gap([1.0, 3.0])
    assert (found.value, found.high - 2) == pytest.approx((2.0, math.tan(0.475 * math.pi)), abs=1e-3)


def test_nothing_is_known_without_examples() -> None:
    assert math.isnan(of_difference([], []).low)
    assert math.isnan(of_mean([]).value)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_an_interval_holds_its_estimate_and_turns_with_the_sides(pairs: list[tuple[bool, bool]]) -> None:
    ours, theirs = [float(a) for a, _ in pairs], [float(b) for _, b in pairs]
    one, other = of_difference(ours, theirs), of_difference(theirs, ours)
    assert one.low <= one.value <= one.high
    assert (one.low, one.high) == pytest.approx((-other.high, -other.low))
    share = of_mean(ours)
    assert 0 <= share.low <= share.value <= share.high <= 1
