"""Calling commands as a shell would."""

import pytest

from fedfomo.cli.main import main

SMALL = ["--clients", "6", "--distributions", "2", "--rounds", "4", "--epochs", "1", "--workers", "0"]


def call(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Call a command that must end with exit code 2, and return its last words."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err.strip()
