import hashlib
import tarfile
from pathlib import Path

import pytest

from fedfomo.datasets import download as module
from fedfomo.datasets.download import ARCHIVES, Archive, download
from fedfomo.errors import InputError


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    (tmp_path / "mirror").mkdir()
    return tmp_path / "mirror"


def publish(monkeypatch: pytest.MonkeyPatch, file: Path, *places: str, unpacks_to: str = "") -> None:
    content = file.read_bytes()
    archive = Archive(file.name, len(content), hashlib.sha256(content).hexdigest(), places, unpacks_to)
    monkeypatch.setitem(ARCHIVES, "small", (archive,))


def test_a_file_comes_from_the_first_mirror_that_has_it(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirror / "data.gz").write_bytes(b"0123456789")
    publish(monkeypatch, mirror / "data.gz", f"{tmp_path.as_uri()}/nowhere/", f"{mirror.as_uri()}/")
    monkeypatch.setattr(module, "_CHUNK", 4)
    seen: list[tuple[str, int, int]] = []
    download("small", tmp_path / "here", lambda *progress: seen.append(progress))
    assert (tmp_path / "here" / "data.gz").read_bytes() == b"0123456789"
    assert seen == [("data.gz", 4, 10), ("data.gz", 8, 10), ("data.gz", 10, 10)]
    seen.clear()
    download("small", tmp_path / "here", lambda *progress: seen.append(progress))
    assert not seen  # what is there and whole is not fetched again


def test_an_archive_is_unpacked_and_removed(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mirror / "inside").mkdir()
    (mirror / "inside" / "train.bin").write_bytes(b"x")
    with tarfile.open(mirror / "data.tar.gz", "w:gz") as archive:
        archive.add(mirror / "inside", "inside")
    publish(monkeypatch, mirror / "data.tar.gz", f"{mirror.as_uri()}/", unpacks_to="inside")
    for _ in range(2):
        download("small", tmp_path / "here")
        assert [file.name for file in (tmp_path / "here").iterdir()] == ["inside"]
        (mirror / "data.tar.gz").unlink(missing_ok=True)
    assert (tmp_path / "here" / "inside" / "train.bin").read_bytes() == b"x"


def test_without_a_network_it_says_what_to_put_where(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirror / "data.gz").write_bytes(b"0123456789")
    place = f"{tmp_path.as_uri()}/nowhere/"
    publish(monkeypatch, mirror / "data.gz", place)
    with pytest.raises(InputError, match=r"cannot download data.gz .* fetch .*nowhere/data.gz on another machine"):
        download("small", tmp_path / "here")
    (tmp_path / "here" / "data.gz").write_bytes(b"0123456789")
    download("small", tmp_path / "here")


def test_another_file_than_the_published_one_is_not_kept(
    mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirror / "data.gz").write_bytes(b"0123456789")
    publish(monkeypatch, mirror / "data.gz", f"{mirror.as_uri()}/")
    (mirror / "data.gz").write_bytes(b"another thing")
    with pytest.raises(InputError, match="is not the published one"):
        download("small", tmp_path / "here")
    assert not list((tmp_path / "here").iterdir())


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        download("cifar-10", tmp_path)
