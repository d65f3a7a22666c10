"""Files that are whole whenever somebody reads them, and secrets among them that only their owner may read.

No torch here: the process that Flower starts for every message would wait for it.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from fedfomo.errors import naming

PUBLIC = 0o666  # less what the user's mask takes off
PRIVATE = 0o600


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
        finally:
            unfinished.unlink(missing_ok=True)
        if durable:
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def delete_unfinished(folder: Path) -> None:
    """Delete what processes that were killed had begun to write, here and in all folders below."""
    for path in folder.rglob("*.unfinished"):
        path.unlink(missing_ok=True)  # its writer may be dying just now
