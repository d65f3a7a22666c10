"""The torturer that tests here ask for."""

import pytest

from scorecard import Torture


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> Torture:
    return Torture(request)
