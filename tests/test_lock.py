"""What is installed is what was looked at: versions and hashes of everything are written down."""

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LOCKS = ("requirements.lock", "requirements-cuda.lock")
LINE = re.compile(r"([a-z0-9-]+)==([^ ]+)((?: --hash=sha256:[0-9a-f]{64})+)")


def _locked(name: str) -> dict[str, str]:
    """Read the packages of a lock; every line of it must be a version with hashes, and nothing else."""
    lines = (ROOT / name).read_text().replace(" \\\n   ", "").splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None]
    return {match[1]: match[2] for match in found if match}


@pytest.mark.parametrize("name", LOCKS)
def test_every_line_has_a_version_and_hashes_and_names_no_place(name: str) -> None:
    assert len(_locked(name)) > 10


def test_what_is_installed_is_what_is_locked() -> None:
    for package, locked in _locked("requirements.lock").items():
        try:
            installed = version(package).partition("+")[0]  # a build's own label is no version
        except PackageNotFoundError:
            pytest.fail(f"{package} is locked, and not installed")
        assert installed == locked, package


def test_nothing_is_needed_that_is_not_locked() -> None:
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_a_line_without_a_hash_would_be_found() -> None:
    assert LINE.fullmatch("torch==2.13.0") is None
    assert LINE.fullmatch("torch>=2.13.0 --hash=sha256:" + 64 * "0") is None
