"""What commands print."""

import pytest

from fedfomo.cli.terminal import warn


@pytest.mark.parametrize("message", ["pip install '.[cluster]'", "[ward-a] and [ward-b] are one", "ends in [/x]"])
def test_a_note_is_printed_as_it_is(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    warn(message)
    assert capsys.readouterr().out == f"note: {message}\n"
