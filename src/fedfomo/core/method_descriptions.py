"""What is said of a method. Torch is not imported: the command that lists methods should not take seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


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
