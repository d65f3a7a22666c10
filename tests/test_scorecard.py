"""The page says what was measured, and nothing else."""

import re

from fedfomo.algorithms import ALGORITHMS
from scorecard import PAGE, filled, saved_figures


def test_the_page_shows_the_figures_that_were_saved() -> None:
    assert PAGE.read_text() == filled(PAGE.read_text(), saved_figures())


def test_what_was_tried_with_all_methods_was_tried_with_all_that_there_are() -> None:
    """A new method is tried too: `pytest --torture` on the test that is named."""
    numbers = {
        (figure.test, number)
        for figure in saved_figures()
        for number in re.findall(r"(?:all|with \d+ of) (\d+) methods", f"{figure.fault} {figure.outcome}")
    }
    assert len(numbers) >= 3
    assert [(test, number) for test, number in numbers if int(number) != len(ALGORITHMS)] == []
