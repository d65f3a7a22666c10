"""Files: written atomically, read with errors that name the file; strict JSON.

This module must not import torch: Flower starts a process for every message, and that process would wait for it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import shutil
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from fedfomo.errors import InputError, naming, reading

PUBLIC = 0o666  # less what the user's mask takes off
PRIVATE = 0o600
HELD = (errno.EACCES, errno.EAGAIN)  # what a system says of a lock that another process holds
FILES_AT_ONCE = 16
PRINTED = 300  # characters, at most, of words that came from elsewhere


def write_atomically(path: Path, *content: bytes | memoryview, durable: bool = True, mode: int = PUBLIC) -> None:
    """Write a file so that a reader, or a power cut, finds the old content or the new, and nothing between."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.unfinished")
    with naming(path):
        try:
            with open(unfinished, "wb", opener=partial(os.open, mode=mode)) as file:
                file.writelines(content)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        if durable:
            _sync(path.parent)


def sync_files(paths: Collection[Path]) -> None:
    """Wait until files, and their names, are on disk: side by side, a tenth of the time that one by one takes."""
    _side_by_side(_sync, paths)
    for folder in sorted({path.parent for path in paths}):
        _sync(folder)


def delete_folder(folder: Path) -> None:
    """Delete a folder and its files: side by side, since the system takes a while over hundreds of megabytes."""
    _side_by_side(Path.unlink, sorted(path for path in folder.rglob("*") if not path.is_dir()))
    shutil.rmtree(folder)


def _side_by_side(work: Callable[[Path], None], paths: Collection[Path]) -> None:
    with ThreadPoolExecutor(min(FILES_AT_ONCE, 1 + len(paths) // FILES_AT_ONCE)) as pool:
        for _ in pool.map(work, paths):
            pass


def _sync(path: Path) -> None:
    with naming(path):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def make_folder(folder: Path, *, is_new: bool = False) -> None:
    """Make a folder and those above it; where that cannot be, say what is in the way."""
    try:
        folder.mkdir(parents=True, exist_ok=not is_new)
    except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
        blocked = next(path for path in (folder, *folder.parents) if path.is_symlink() or path.exists())
        cause = "where no folder can be" if blocked.is_dir() else f"since {blocked} is no folder"
        raise InputError(f"cannot make the folder {folder}, {cause}: give another") from error


def lock(path: Path, busy: str | None = None) -> TextIO:
    """Keep other processes out until the file that is returned is closed.

    If another process holds the lock, wait for it, or refuse with the words `busy` if these are given.
    """
    # A record lock, unlike flock, is not inherited by forked workers that may outlive this process.
    file = path.open("w")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | (0 if busy is None else fcntl.LOCK_NB))
    except OSError as error:
        file.close()
        if busy is not None and error.errno in HELD:
            raise InputError(busy) from None
        way_out = "give a folder on a file system that has locks"
        raise InputError(f"{path} cannot be locked ({error.strerror}): {way_out}") from error
    return file


def delete_unfinished(folder: Path) -> None:
    """Delete what processes that were killed had begun to write, here and in all folders below."""
    for path in folder.rglob("*.unfinished"):
        path.unlink(missing_ok=True)  # its writer may be dying just now


def to_json(value: Any, indent: int | None = None) -> str:
    """Spell out plain values as strict JSON."""
    return json.dumps(_without_nan(value), allow_nan=False, indent=indent)


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a file that holds one object; if it is damaged, say what to do."""
    with reading(path, remedy):
        return dict[str, Any](json.loads(path.read_bytes()))


def read_lines(path: Path, holding: bytes = b"") -> list[dict[str, Any]]:
    """Read the whole lines of a run's log, or those that hold a word; the last one may still be on its way."""
    if not path.exists():
        return []
    with reading(path, "resume the run, or run it again"), path.open("rb") as lines:
        return [json.loads(line) for line in lines if holding in line and line.endswith(b"\n")]


def printable(words: str) -> str:
    """Return words on one line, with a mark in place of what steers terminals or cannot be encoded, and cut if long."""
    shown = "".join(character if character.isprintable() else "�" for character in words[:PRINTED])
    return shown + ("…" if len(words) > PRINTED else "")


def _without_nan(value: Any) -> Any:
    """Write what is not a number as null: JSON has no other word for it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(item) for item in value]
    return value
