"""Work in a process of its own: what it does to the interpreter, and the memory that it takes, end with it."""

from __future__ import annotations

import json
import multiprocessing
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a forked process, and return plain values as it returned them."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, function, arguments))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads, of which nobody holds a lock
        process.start()
    theirs.close()
    try:
        return json.loads(ours.recv_bytes())
    finally:
        process.join()


def _send(to: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    to.send_bytes(json.dumps(function(*arguments)).encode())
