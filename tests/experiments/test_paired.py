"""Who is ahead: worked by hand."""

import math

import pytest

from experiments.iclr2021.paired import Lead, holm, lead, outcome, verdicts


def test_the_interval_by_hand() -> None:
    # Mean 2, squared deviations 1 + 0 + 1, so the standard deviation is 1 and its error 1/√3; t(0.975; 2) = 4.30265.
    one = Lead((1.0, 2.0, 3.0))
    assert one.mean == 2.0
    assert one.half_width == pytest.approx(4.30265 / math.sqrt(3), abs=1e-4)
    assert str(one) == "+2.0 ± 2.5"


def test_the_p_value_by_hand() -> None:
    # With two degrees of freedom the two-sided p-value of t is 1 − t/√(2 + t²); here t = 2√3, so 1 − √12/√14.
    assert Lead((1.0, 2.0, 3.0)).p_value == pytest.approx(1 - math.sqrt(12 / 14))


def test_one_seed_decides_nothing() -> None:
    one = Lead((9.0,))
    assert one.p_value == 1.0
    assert math.isinf(one.half_width)
    assert verdicts({"rival": one}) == {"rival": "open"}
    assert str(one) == "+9.0"


def test_the_same_run_twice_is_even() -> None:
    assert verdicts({"rival": Lead((0.0, 0.0, 0.0))}) == {"rival": "even"}


def test_clients_are_paired_within_a_seed() -> None:
    one = {0: [0.9, 0.5, None], 1: [0.8, 0.8, 0.8], 2: [1.0]}
    other = {0: [0.8, 0.2, 0.7], 1: [0.7, 0.8, 0.6]}
    # Seed 0: (0.1 + 0.3) / 2 = 20 points, for a client without test data says nothing; seed 1: 0.3 / 3 = 10 points.
    found = lead(one, other)
    assert found is not None
    assert found.values == pytest.approx((20.0, 10.0))
    assert lead({0: [0.5]}, {1: [0.5]}) is None


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.04: times 3, 2, 1 is 0.03, 0.04, 0.04; none may fall below the one before it.
    assert holm({"b": 0.02, "a": 0.01, "c": 0.04}) == pytest.approx({"a": 0.03, "b": 0.04, "c": 0.04})
    assert holm({"a": 0.03, "b": 0.035}) == pytest.approx({"a": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_even_is_shown_and_not_assumed() -> None:
    assert verdicts({"rival": Lead((0.1, 0.2, 0.3))}) == {"rival": "even"}  # 0.2 ± 0.25
    assert verdicts({"rival": Lead((-0.9, 0.0, 0.9))}) == {"rival": "open"}  # 0.0 ± 2.2: nobody knows


def test_a_small_lead_that_is_certain_is_even() -> None:
    assert verdicts({"rival": Lead((0.5, 0.51, 0.52))}) == {"rival": "even"}


def test_many_rivals_ask_for_more() -> None:
    clear = Lead((1.9, 2.0, 2.1, 2.6))
    alone = verdicts({"rival": clear})
    among = verdicts({"rival": clear} | {f"other {n}": Lead((-3.0, 3.0, -2.9, 3.0)) for n in range(199)})
    assert alone["rival"] == "ahead"
    assert among["rival"] == "open"


def test_what_a_regime_comes_to() -> None:
    assert outcome({"a": "ahead", "b": "ahead"}) == "win"
    assert outcome({"a": "ahead", "b": "even"}) == "even"
    assert outcome({"a": "ahead", "b": "behind", "c": "open"}) == "loss"
    assert outcome({"a": "ahead", "b": "open"}) == "open"
    assert outcome({}) == "open"
