"""The page says what was measured, and nothing else."""

from scorecard import PAGE, filled, saved_figures


def test_the_page_shows_the_figures_that_were_saved() -> None:
    assert PAGE.read_text() == filled(PAGE.read_text(), saved_figures())
