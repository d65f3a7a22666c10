"""Open files in a process that was forked: each is opened again, so that it has a position of its own.

A data set that keeps a file open reads an example by going to its place and reading on. Processes that share the open
file share its position: one would go to its place, and another read there.
"""

from __future__ import annotations

import fcntl
import os
import stat
import warnings
from pathlib import Path

_FIRST = 3  # behind standard input, output and error, whose position is everybody's
_OPEN = Path("/proc/self/fd")


def reopen_files() -> None:
    """Give every file that this process inherited for reading a position of its own, where the system can (Linux)."""
    if not _OPEN.exists():
        return
    for number in sorted(int(entry) for entry in os.listdir(_OPEN)):
        if number >= _FIRST and _is_read_from(number):
            _reopen(number)


def _is_read_from(number: int) -> bool:
    try:
        is_file = stat.S_ISREG(os.fstat(number).st_mode)
        return is_file and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    except OSError:  # the descriptor by which the list was read is closed by now
        return False


def _reopen(number: int) -> None:
    link, inherits = _OPEN / str(number), os.get_inheritable(number)
    try:
        own = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        warnings.warn(
            f"{os.readlink(link)} is open and cannot be opened again by a worker process ({error.strerror}): several"
            " processes would read it from one position, and wrong examples; open it in __getitem__, or give workers=0",
            RuntimeWarning,
            stacklevel=2,
        )
        return
    os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
    os.dup2(own, number, inheritable=inherits)
    os.close(own)
