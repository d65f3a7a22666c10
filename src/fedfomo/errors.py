"""The one exception for what a user can put right."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path


class InputError(Exception):
    """What was asked for cannot be done; the message says what is wrong, where, and what to do."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> InputError:
    """Describe a name that nothing answers to, with the nearest one that exists."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    return InputError(f"unknown {kind} '{name}'{where and ' ' + where}: {hint}")


def require(holds: bool, message: str) -> None:
    """Refuse what cannot work, in words."""
    if not holds:
        raise InputError(message)


@contextmanager
def reading(path: Path, remedy: str) -> Generator[None]:
    """Turn what a file that holds something else than it should makes its reader raise into one line."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{path} is damaged ({type(error).__name__}: {error}): {remedy}") from error
