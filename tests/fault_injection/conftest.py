"""The torturer that tests here ask for."""

import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

from scorecard import Torture


@pytest.fixture
def torture(request: pytest.FixtureRequest) -> Torture:
    return Torture(request)


@pytest.fixture
def in_memory() -> Generator[Path]:
    """A folder that costs no disk: to a process it is as good as any, and hundreds of runs are quicker."""
    memory = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "test_soak" not in item.nodeid)  # the longest first, or all would wait for it
