"""What a user can put right: one exception for it, and the errors of a disk."""

import errno
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from difflib import get_close_matches
from os import PathLike, fspath
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


NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
"""What only whoever writes is told."""
NO_ACCESS = (errno.EIO, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""What whoever reads may be told as well."""


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
