"""Settings of every test."""

import pytest
import torch
from hypothesis import settings

from scorecard import FIGURE

torch.set_num_threads(1)

# A busy machine makes single examples slow; that is no failure. The same examples every time: a red run stays red.
settings.register_profile("fedfomo", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("fedfomo")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture", action="store_true", help="repeat faults as often as the scorecard asks for")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    figures = [str(value) for report in reports for name, value in report.user_properties if name == FIGURE]
    if figures:
        terminalreporter.section("what faults did")
        terminalreporter.write_line("\n".join(figures))
