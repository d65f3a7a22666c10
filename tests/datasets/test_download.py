import hashlib
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedfomo.datasets import download as module
from fedfomo.datasets.download import ARCHIVES, Archive, download
from fedfomo.errors import InputError


class _Server(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    (tmp_path / "mirror").mkdir()
    return tmp_path / "mirror"


@pytest.fixture
def address(tmp_path: Path, mirror: Path) -> Iterator[str]:
    """Serve the mirror on this machine, and what is beside it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Server, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def publish(monkeypatch: pytest.MonkeyPatch, file: Path, *places: str, unpacks_to: str = "") -> None:
    content = file.read_bytes()
    archive = Archive(file.name, len(content), hashlib.sha256(content).hexdigest(), places, unpacks_to)
    monkeypatch.setitem(ARCHIVES, "small", (archive,))


def test_a_file_comes_from_the_first_mirror_that_has_it(
    mirror: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirror / "data.gz").write_bytes(b"0123456789")
    publish(monkeypatch, mirror / "data.gz", f"{address}/nowhere/", f"{address}/mirror/")
    monkeypatch.setattr(module, "_CHUNK", 4)
    seen: list[tuple[str, int, int]] = []
    download("small", tmp_path / "here", lambda *progress: seen.append(progress))
    assert (tmp_path / "here" / "data.gz").read_bytes() == b"0123456789"
    assert seen == [("data.gz", 4, 10), ("data.gz", 8, 10), ("data.gz", 10, 10)]
    seen.clear()
    download("small", tmp_path / "here", lambda *progress: seen.append(progress))
    assert not seen  # what is there and whole is not fetched again


def test_an_archive_is_unpacked_and_removed(
    mirror: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirror / "inside").mkdir()
    (mirror / "inside" / "train.bin").write_bytes(b"x")
    with tarfile.open(mirror / "data.tar.gz", "w:gz") as archive:
        archive.add(mirror / "inside", "inside")
    publish(monkeypatch, mirror / "data.tar.gz", f"{address}/mirror/", unpacks_to="inside")
    for _ in range(2):
        download("small", tmp_path / "here")
        assert [file.name for file in (tmp_path / "here").iterdir()] == ["inside"]
        (mirror / "data.tar.gz").unlink(missing_ok=True)
    assert (tmp_path / "here" / "inside" / "train.bin").read_bytes() == b"x"


def test_without_a_network_it_says_what_to_put_where(
    mirror: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirror / "data.gz").write_bytes(b"0123456789")
    place = f"{address}/nowhere/"
    publish(monkeypatch, mirror / "data.gz", place)
    with pytest.raises(InputError, match=r"cannot download data.gz .* fetch .*nowhere/data.gz on another machine"):
        download("small", tmp_path / "here")
    (tmp_path / "here" / "data.gz").write_bytes(b"0123456789")
    download("small", tmp_path / "here")


def test_another_file_than_the_published_one_is_not_kept(
    mirror: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mirror / "data.gz").write_bytes(b"0123456789")
    publish(monkeypatch, mirror / "data.gz", f"{address}/mirror/")
    (mirror / "data.gz").write_bytes(b"another thing")
    with pytest.raises(InputError, match="is not the published one"):
        download("small", tmp_path / "here")
    assert not list((tmp_path / "here").iterdir())


def test_an_unknown_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'cifar10'"):
        download("cifar-10", tmp_path)


def test_a_place_where_nobody_answers_is_named(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mirror / "data.gz").write_bytes(b"0123456789")
    publish(monkeypatch, mirror / "data.gz", "http://127.0.0.1:9/")
    with pytest.raises(InputError, match=r"cannot download data.gz \(http://127.0.0.1:9/: Connection refused\)"):
        download("small", tmp_path / "here")


@pytest.mark.parametrize("kind", ["file", "dangling link", "below a file"])
def test_a_place_that_is_no_folder_is_named(kind: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    if kind == "dangling link":
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.write_text("")
    folder = place / "data" if kind == "below a file" else place
    with pytest.raises(InputError, match=f"cannot make the folder {folder}, since {place} is no folder"):
        download("mnist", folder)
