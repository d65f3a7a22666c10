"""Archives that lie about what they hold."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedfomo.core.archives import ArchiveError, map_npy, most_unpacked, read_npz, read_tensors
from fedfomo.errors import InputError


def npy(array: Any, **header: Any) -> bytes:
    opened = io.BytesIO()
    if header:
        np.lib.format.write_array_header_1_0(opened, header)
        opened.write(array.tobytes())
    else:
        np.save(opened, array, allow_pickle=True)
    return opened.getvalue()


def archive(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, content in members.items():
            opened.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back_as_they_were(tmp_path: Path, save: Any) -> None:
    arrays = {
        "images": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        "columns": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "one": np.array(0.5),
        "text": np.array("abc"),
        "none": np.empty((0, 3)),
    }
    save(tmp_path / "a.npz", **arrays)
    found = read_npz(tmp_path / "a.npz")
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    torch.from_numpy(found["images"]).add_(1)  # nobody is warned of memory that must not be written to


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npy(np.array([{}], dtype=object)), "Python objects"),
        (npy(np.zeros(8), descr="<f8", fortran_order=False, shape=(500_000_000_000,)), "has 64 bytes"),
        (npy(np.zeros(8), descr="<f8", fortran_order=False, shape=(7,)), "has 64 bytes"),
        (npy(np.zeros(8), descr="<f8", fortran_order=False, shape=(-8,)), "has 64 bytes"),
        (npy(np.zeros(8))[:-1], "has 63 bytes"),
        (b"nonsense", "magic"),
    ],
)
def test_arrays_that_are_not_what_they_say_are_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ArchiveError, match=reason):
        read_npz(archive(tmp_path / "a.npz", x=content))
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ArchiveError, match=reason):
        map_npy(tmp_path / "a.npy", "r")


def test_what_unpacks_to_far_more_than_its_size_is_refused(tmp_path: Path) -> None:
    bomb = archive(tmp_path / "a.npz", x=npy(np.zeros(60_000_000, np.uint8)))
    assert bomb.stat().st_size < 100_000
    with pytest.raises(ArchiveError, match="store it uncompressed"):
        read_npz(bomb)
    assert most_unpacked(10) == 50_000_000
    assert most_unpacked(10_000_000) == 1_000_000_000


def test_a_file_is_mapped_as_it_is(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    assert map_npy(tmp_path / "a.npy", "c").tolist() == [[0, 1, 2], [3, 4, 5]]


def test_files_of_tensors_are_read_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"x": torch.ones(3)}, file)
    assert read_tensors(file)["x"].tolist() == [1, 1, 1]
    for content in (file.read_bytes()[:-1], b"", (2**40).to_bytes(8, "little") + b"{}"):
        file.write_bytes(content)
        with pytest.raises(InputError, match="not a whole file of tensors"):
            read_tensors(file)
