"""Methods by name, and descriptions of them, without torch: commands that list methods should not take seconds.

A method is written `fedfomo`, or `my_methods.py:MyMethod`; with a name of one's own, `fomo5=fedfomo`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

OWN_NAME = re.compile(r"([\w][\w.-]*)=(.+)", re.DOTALL)

DEFAULT_METHOD = "fedfomo-plus"
"""What `federate` and deployments run if no method is named; `fedfomo run` runs the paper's method, `fedfomo`."""
ENTRY_POINTS = "fedfomo.algorithms"
"""The group of entry points in which packages name their methods."""


def installed_methods() -> list[str]:
    """Return the names of the methods that installed packages bring along."""
    return sorted(entry_points(group=ENTRY_POINTS).names)


def method_of(written: str) -> str:
    """Return a method without the name that a user gave it: `fedfomo` of `fomo5=fedfomo`."""
    found = OWN_NAME.fullmatch(written)
    return found[2] if found else written


def label_of(written: str) -> str:
    """Return the name by which a method is shown, and its options are given.

    It is the user's own, if there is one; otherwise the method's, or its class, if it comes from a file.
    """
    found = OWN_NAME.fullmatch(written)
    return found[1] if found else written.rpartition(":")[2]


def split_options(written: str) -> tuple[str, list[str]]:
    """Take apart `fomo5=fedfomo:num_downloads=5,epsilon=0.1`: the named method, and its options as name=value."""
    method = method_of(written)
    _, colon, last = method.rpartition(":")
    if not colon or "=" not in last:
        return written, []
    return written.removesuffix(f":{last}"), last.split(",")


@dataclass(frozen=True)
class Option:
    """One option of a method."""

    name: str
    default: Any
    help: str
    type: Any = None  # with its bounds: Annotated[float, Meta(ge=0)]; the list of methods does without


@dataclass(frozen=True)
class Description:
    """A method in a few words."""

    summary: str
    paper: str
    sends: str
    compute: str
    options: list[Option]
