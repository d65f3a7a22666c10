"""How messages write what a user can give: an argument in Python, and in the command line the flag of that name."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

_are_flags: ContextVar[bool] = ContextVar("are_flags", default=False)


@contextmanager
def as_flags() -> Generator[None]:
    """Let messages name flags: for commands."""
    before = _are_flags.set(True)
    try:
        yield
    finally:
        _are_flags.reset(before)


def argument(name: str, value: str | Sequence[str] | None = None) -> str:
    """Write an argument, with its value if there is one: categories=['age'], or --categories age."""
    if _are_flags.get():
        words = [value] if isinstance(value, str) else value or []
        return " ".join([f"--{name.replace('_', '-')}", *words])
    if value is None:
        return f"{name}="
    return f'{name}="{value}"' if isinstance(value, str) else f"{name}={[*value]}"
