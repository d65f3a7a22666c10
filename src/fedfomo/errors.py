"""The one exception for what a user can put right."""

from collections.abc import Iterable
from difflib import get_close_matches


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
