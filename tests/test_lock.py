"""Locks: the version and the hashes of all that `make demo` and `make test` install."""

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
DEMO, TEST, CUDA = "requirements.lock", "requirements-dev.lock", "requirements-cuda.lock"
LINE = re.compile(r"([a-z0-9-]+)==([^ ]+)((?: --hash=sha256:[0-9a-f]{64})+)")


def _locked(name: str) -> dict[str, str]:
    """Read the packages of a lock; every line of it must be a version with hashes, and nothing else."""
    lines = (ROOT / name).read_text().replace(" \\\n   ", "").splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if match is None]
    return {match[1]: match[2] for match in found if match}


def _declared(*extras: str) -> list[str]:
    """Return the requirements in `pyproject.toml`: those of the package, and those of some extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]


def _requirements(name: str, extras: Iterable[str], version: str) -> list[str]:
    """Return the requirements of a locked package: none are known unless it is installed in that version."""
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return []
    if installed.version.partition("+")[0] != version:  # the label of a local build is no part of the version
        return []
    required = map(Requirement, installed.requires or [])
    contexts = [{"extra": extra} for extra in ("", *extras)]
    return [str(each) for each in required if not each.marker or any(map(each.marker.evaluate, contexts))]


def _missing(declared: Iterable[str], locked: dict[str, str]) -> list[str]:
    """Follow requirements through a lock; return those that it does not meet."""
    waiting, seen, missing = list(declared), set[str](), list[str]()
    while waiting:
        line = waiting.pop()
        if line in seen:
            continue
        seen.add(line)
        required = Requirement(line)
        name = canonicalize_name(required.name)
        if name == "fedfomo":
            waiting += _declared(*required.extras)
        elif name not in locked or not required.specifier.contains(locked[name], prereleases=True):
            missing.append(line)
        else:
            waiting += _requirements(name, required.extras, locked[name])
    return missing


@pytest.mark.parametrize("name", [DEMO, TEST, CUDA])
def test_every_line_has_a_version_and_hashes_and_names_no_place(name: str) -> None:
    assert len(_locked(name)) > 10


def test_the_locks_agree() -> None:
    tests = _locked(TEST)
    assert _locked(DEMO).items() <= tests.items()
    assert _locked(CUDA)["torch"] == tests["torch"]


@pytest.mark.parametrize(("name", "extras"), [(DEMO, []), (TEST, ["dev"])])
def test_nothing_is_needed_that_is_not_locked(name: str, extras: list[str]) -> None:
    assert _missing(_declared(*extras), _locked(CUDA) | _locked(name)) == []


def test_a_requirement_that_is_not_locked_is_found() -> None:
    locked = _locked(DEMO)
    assert _missing(["ray>=2", "numpy<1"], locked) == ["numpy<1", "ray>=2"]
    del locked["joblib"]  # which scikit-learn needs
    assert any(line.startswith("joblib") for line in _missing(_declared(), _locked(CUDA) | locked))


def test_the_demo_needs_no_tools_of_development() -> None:
    assert _locked(DEMO).keys().isdisjoint({"flwr", "matplotlib", "pyright", "pytest", "ray", "selenium"})
