import os
from pathlib import Path

import pytest
import torch

from fedfomo.core.data import Examples
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.cache import cache_folder, cached
from fedfomo.errors import InputError


class Reader:
    """Reads a set from nowhere, and counts how often it is asked to."""

    def __init__(self, name: str = "four") -> None:
        self.calls = 0
        self.name = name

    def __call__(self) -> DataSet:
        self.calls += 1
        examples = Examples(torch.arange(4.0).reshape(4, 1, 1, 1), torch.tensor([0, 1, 0, 1]))
        return DataSet(self.name, examples, examples, 2, "abc")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"x")
    return tmp_path / "file"


def test_a_set_is_read_once(file: Path, tmp_path: Path) -> None:
    read = Reader()
    for _ in range(3):
        data = cached([file], read, tmp_path / "cache")
        assert (data.name, data.num_classes, data.fingerprint) == ("four", 2, "abc")
        assert data.train.inputs.flatten().tolist() == [0, 1, 2, 3]
        assert data.test.labels.tolist() == [0, 1, 0, 1]
    assert read.calls == 1


def test_writing_to_a_mapped_set_changes_nothing_else(file: Path, tmp_path: Path) -> None:
    one, two = (cached([file], Reader(), tmp_path / "cache") for _ in range(2))
    one.train.inputs[0] = 7
    assert two.train.inputs[0] == cached([file], Reader(), tmp_path / "cache").train.inputs[0] == 0


def test_a_changed_file_is_read_anew(file: Path, tmp_path: Path) -> None:
    read = Reader()
    cached([file], read, tmp_path / "cache")
    file.write_bytes(b"xy")
    cached([file], read, tmp_path / "cache")
    assert read.calls == 2


def test_a_link_in_another_place_or_to_another_file_is_read_anew(file: Path, tmp_path: Path) -> None:
    read = Reader()
    link, moved = tmp_path / "cats" / "1", tmp_path / "dogs" / "1"
    for place in (link, moved):
        place.parent.mkdir()
    link.symlink_to(file)
    cached([link], read, tmp_path / "cache")
    link.rename(moved)
    cached([moved], read, tmp_path / "cache")
    assert read.calls == 2
    cached([moved], read, tmp_path / "cache")
    assert read.calls == 2
    status = file.stat()
    other = file.with_name("other")
    other.write_bytes(b"y")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    moved.unlink()
    moved.symlink_to(other)
    cached([moved], read, tmp_path / "cache")
    assert read.calls == 3


def test_other_files_with_the_same_set_share_its_arrays(file: Path, tmp_path: Path) -> None:
    other = file.with_name("other")
    other.touch()
    cached([file], Reader("one"), tmp_path / "cache")
    assert cached([other], Reader("two"), tmp_path / "cache").name == "two"
    assert cached([file], Reader(), tmp_path / "cache").name == "one"
    assert [home.name for home in (tmp_path / "cache" / "sets").iterdir()] == ["abc"]


@pytest.mark.parametrize("damaged", ["sets/abc/train_inputs.npy", "sets/abc/test_labels.npy", "sources/*.json"])
@pytest.mark.parametrize("kept", [0, 60])
def test_a_damaged_cache_is_made_anew(file: Path, tmp_path: Path, damaged: str, kept: int) -> None:
    read = Reader()
    cached([file], read, tmp_path / "cache")
    (victim,) = (tmp_path / "cache").glob(damaged)
    victim.write_bytes(victim.read_bytes()[:kept])
    assert cached([file], read, tmp_path / "cache").train.inputs.flatten().tolist() == [0, 1, 2, 3]
    assert read.calls == 2
    cached([file], read, tmp_path / "cache")
    assert read.calls == 2


def test_a_folder_that_cannot_be_written_is_named(file: Path) -> None:
    with pytest.raises(InputError, match=r"cannot store 'four' in .* set FEDFOMO_CACHE"):
        cached([file], Reader(), file)


def test_the_environment_chooses_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDFOMO_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("FEDFOMO_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "fedfomo"
