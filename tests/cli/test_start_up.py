"""What computes nothing does without torch, which takes more than a second to import."""

import subprocess
import sys

import pytest

from fedfomo.cli.main import COMMANDS

LOADED = """
import sys
try:
    {}
except SystemExit as end:
    assert not end.code, end.code
print("torch" in sys.modules, file=sys.stderr)
"""
CALLS = [
    *([], ["--help"], ["methods"], ["methods", "fedfomo-plus"], ["scenarios"], ["data"], ["deploy"], ["runs"]),
    *([name, "--help"] for name in COMMANDS),
]


def loads_torch(code: str) -> bool:
    ended = subprocess.run([sys.executable, "-c", LOADED.format(code)], capture_output=True, text=True, check=True)
    return {"True": True, "False": False}[ended.stderr.splitlines()[-1]]


def test_commands_that_compute_nothing_do_not_import_torch() -> None:
    calls = "\n    ".join(f"call({call})" for call in CALLS)
    code = f"""
    import contextlib
    from fedfomo.cli.main import main
    def call(arguments):
        with contextlib.suppress(SystemExit):
            main(arguments)
        assert "torch" not in sys.modules, arguments
    {calls}"""
    assert not loads_torch(code)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import fedfomo", False),
        ("from fedfomo import federate", False),
        ("import fedfomo; dir(fedfomo); fedfomo.FedFomo", True),
    ],
)
def test_names_are_imported_when_they_are_used(code: str, expected: bool) -> None:
    assert loads_torch(code) is expected
