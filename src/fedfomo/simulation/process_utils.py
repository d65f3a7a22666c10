"""Processes that end with the one they work for.

A coordinator that is killed cannot dismiss anybody. Its workers would find out when they report: until then they
would train, and write, for nobody, beside the workers of whoever resumes the run. Likewise a supervisor of others'
programs, which would not find out at all.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl


def exit_with_parent(parent: int) -> None:
    """Let the system kill this process as soon as its parent is gone, where it can; elsewhere, do nothing."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        os.kill(os.getpid(), signal.SIGKILL)
