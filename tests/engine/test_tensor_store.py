"""Tensors in files: every kind of number comes back, and what is damaged is named."""

import json
from pathlib import Path

import pytest
import torch

from fedfomo.engine.tensor_store import HELD_AT_ONCE, TensorStore
from fedfomo.errors import InputError

DTYPES = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (40, 3)])
def test_every_kind_of_number_comes_back(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    files = TensorStore(tmp_path, durable=False)
    tensor = (torch.rand(shape) * 3).to(dtype)
    found = files.reopen().load(files.save("a.safetensors", {"x": tensor}))["x"]
    assert found.dtype == dtype
    assert torch.equal(found, tensor)


@pytest.mark.parametrize(
    "place",
    [
        '=["load", [1], "AAAA"]',
        '=["float32", [-1, -1], "AACAPw=="]',
        '=["float32", [7], "AACAPw=="]',
        "=[",
        "=" + "[" * 100_000,
        "a.safetensors#absent",
    ],
)
def test_references_that_lead_nowhere_are_refused(tmp_path: Path, place: str) -> None:
    files = TensorStore(tmp_path, durable=False)
    files.save("a.safetensors", {"x": torch.arange(100)})
    with pytest.raises(InputError, match="is damaged"):
        files.load({"x": place})


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "OBJECT", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [-8, -4]},
        3,
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, entry: object) -> None:
    header = json.dumps({"x": entry}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(InputError, match=r"a.safetensors is damaged"):
        TensorStore(tmp_path, durable=False).load({"x": "a.safetensors#x"})


def test_a_file_for_no_checkpoint_has_no_checksum_and_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    files, tensor = TensorStore(tmp_path, durable=True), torch.rand(40)
    references = files.save("last.safetensors", {"x": tensor}, for_checkpoint=False)
    assert (files.checksums, synced) == ({}, [])
    assert torch.equal(files.load_once(references)["x"], tensor)
    files.save("kept.safetensors", {"x": tensor})
    assert list(files.checksums) == ["kept.safetensors"]
    assert synced


def test_a_file_that_is_written_again_is_read_anew(tmp_path: Path) -> None:
    files = TensorStore(tmp_path, durable=False)
    first, second = torch.rand(40), torch.rand(50)
    mapped = files.load(files.save("a.safetensors", {"x": first}))["x"]
    references = files.save("a.safetensors", {"y": second})
    assert torch.equal(files.load(references)["y"], second)
    assert torch.equal(mapped, first)
    again = files.save("b.safetensors", {"x": mapped})
    assert torch.equal(files.reopen().load(again)["x"], first)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux")
def test_a_file_that_is_mapped_is_not_kept_open(tmp_path: Path) -> None:
    files, tensors = TensorStore(tmp_path, durable=False), [torch.rand(40) for _ in range(20)]
    places = [files.save(f"{n}.safetensors", {"x": tensor}) for n, tensor in enumerate(tensors)]
    before = len(list(Path("/proc/self/fd").iterdir()))
    found = [files.load(references)["x"] for references in places]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    files.note_read(HELD_AT_ONCE + 1)  # gives memory back
    assert all(torch.equal(one, other) for one, other in zip(found, tensors, strict=True))
