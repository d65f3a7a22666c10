"""Files that a process inherits are opened again, where that can be."""

import os
from pathlib import Path

import pytest

from fedfomo.core.open_files import reopen_files

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")


def in_child(*descriptors: int) -> int:
    """Reopen files in a forked process, move some by their descriptors, and return the exit code."""
    child = os.fork()
    if child == 0:
        try:
            reopen_files()
            for number in descriptors:
                os.lseek(number, 7, os.SEEK_SET)
            os._exit(0)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_file_for_reading_has_a_position_of_its_own_and_one_for_writing_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))
    with path.open("rb") as reading, (tmp_path / "log").open("wb") as writing:
        reading.seek(50)
        assert in_child(reading.fileno(), writing.fileno()) == 0
        assert os.lseek(reading.fileno(), 0, os.SEEK_CUR) == 50
        assert os.lseek(writing.fileno(), 0, os.SEEK_CUR) == 7


def test_a_file_that_is_deleted_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    with path.open("rb", buffering=0) as reading:
        reading.seek(50)
        path.unlink()
        reopen_files()
        assert reading.read(2) == bytes([50, 51])


def test_a_file_that_cannot_be_opened_again_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(100))

    def refuse(path: object, flags: int) -> int:
        raise PermissionError(13, "Permission denied")

    with path.open("rb"):
        monkeypatch.setattr(os, "open", refuse)
        with pytest.warns(RuntimeWarning, match=f"{path} is open and cannot be opened again .*Permission denied"):
            reopen_files()
