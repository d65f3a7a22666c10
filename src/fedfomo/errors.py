"""Errors that users can correct: one exception for them, and the errors of a disk."""

import errno
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path


class InputError(Exception):
    """An error that the user can correct; the message says what is wrong, where, and what to do."""


def unknown(kind: str, name: str, known: Iterable[str], where: str = "") -> InputError:
    """Return the error of an unknown name, with the nearest known one."""
    near = nearest(name, known)
    hint = f"did you mean '{near}'?" if near else f"known: {', '.join(sorted(known))}"
    return InputError(f"unknown {kind} '{name}'{where and ' ' + where}: {hint}")


def listed(names: Sequence[str], most: int = 5) -> str:
    """Join names by commas; of many, the first few."""
    return ", ".join(names[:most]) + (" and others" if len(names) > most else "")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the name that was meant: a typing mistake or two away, or left unfinished; None if there is none."""
    word = name.lower().replace("-", "_")
    names = sorted(known)
    distances = [_edits(word, other.lower().replace("-", "_")) for other in names]
    near = min(zip(distances, names, strict=True), default=(len(name), ""))
    if near[0] <= min(len(name) // 3, 3):
        return near[1] or None
    return next((other for other in names if len(word) > 2 and other.lower().startswith(word)), None)


def _edits(one: str, other: str) -> int:
    """Count the letters to insert, delete, replace or swap with their neighbour that turn one word into another."""
    before, last = list[int](), list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            row.append(min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a != b)))
            if i > 1 and j > 1 and (a, b) == (other[j - 2], one[i - 2]):
                row[j] = min(row[j], before[j - 2] + 1)
        before, last = last, row
    return last[-1]


def require(holds: bool, message: str) -> None:
    """Raise an `InputError` with this message unless a condition holds."""
    if not holds:
        raise InputError(message)


def require_count(name: str, value: object, least: int = 1) -> None:
    """Refuse what is no whole number, or one that is too small."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and value >= least
    require(is_count, f"{name} must be a whole number of at least {least}, not {value!r}")


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""Errors of a disk that only writing meets."""
NO_ACCESS = (errno.EIO, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""Errors of a disk that reading meets as well."""


def is_disk_fault(error: OSError) -> bool:
    """Tell whether a disk is full, failing or closed to us, or has no such place, which no program can put right."""
    return error.errno in (*NO_ROOM, *NO_ACCESS)


def disk_sentence(error: OSError) -> str:
    """Say which file the disk refused, and why."""
    return f"cannot {'write' if error.errno in NO_ROOM else 'use'} {error.filename}: {error.strerror}"


@contextmanager
def naming(path: PathLike[str]) -> Generator[None]:
    """Let whatever the disk refuses carry the file's name: a failed write, unlike a failed open, does not say it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, fspath(path)) from error


UNREADABLE = (ArithmeticError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a file that holds something else than it should makes its reader raise."""


def sentence_of(error: InputError) -> str:
    """Say in one line what is wrong, and in brackets what was added on the way, such as whose data it was."""
    notes: list[str] = getattr(error, "__notes__", [])
    return f"{error} ({'; '.join(notes)})" if notes else str(error)


def damaged(path: Path, remedy: str, error: Exception) -> InputError:
    """Return one line for what a reader raised."""
    return InputError(f"{path} is damaged ({type(error).__name__}: {error}): {remedy}")


@contextmanager
def reading(path: Path, remedy: str) -> Generator[None]:
    """Turn what a damaged file makes its reader raise into one line."""
    try:
        yield
    except UNREADABLE as error:
        raise damaged(path, remedy, error) from error
