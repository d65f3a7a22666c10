"""Files are there whole or not at all, last, and are their owner's alone where that is asked for."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedfomo.io import PRIVATE, write_atomically


@pytest.fixture
def no_mask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_secret_is_its_owners_alone(tmp_path: Path, no_mask: None) -> None:
    path = tmp_path / "key"
    for content, given, mode in ((b"old", {}, 0o666), (b"new", {"mode": PRIVATE}, 0o600)):
        write_atomically(path, content, **given)
        assert path.read_bytes() == content
        assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize(("durable", "expected"), [(True, ["file", "folder"]), (False, [])])
def test_what_is_to_last_is_flushed_and_so_is_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool, expected: list[str]
) -> None:
    flushed: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        flushed.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    write_atomically(tmp_path / "key", b"secret", durable=durable, mode=PRIVATE)
    assert flushed == expected


def test_what_fails_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.mkdir()  # no file can take its place
    with pytest.raises(OSError, match="key") as raised:
        write_atomically(path, b"secret", mode=PRIVATE)
    assert raised.value.filename == str(path)
    assert [found.name for found in tmp_path.iterdir()] == ["key"]
