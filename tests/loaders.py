"""Everything of the library that reads bytes from elsewhere, by name: a whole file to begin with, and its reader.

A reader is handed bytes, whatever they are, and a folder of its own. It returns, or it raises one of `REFUSALS`.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save
from torch import nn

from experiments.iclr2021.latent_groups import embedding
from experiments.iclr2021.results import Results
from fedfomo.algorithms.fedfomo import Download, EvaluationWeights, FedFomo, Memory, Upload
from fedfomo.core import messages
from fedfomo.core.archives import read_tensors
from fedfomo.core.round import CommunicationCost
from fedfomo.datasets import cache, latent_groups
from fedfomo.datasets.bundled import DataSet, load_digits
from fedfomo.datasets.formats import decode_cifar, decode_idx, decode_images, decode_npz
from fedfomo.deployment.audit_log import DeliveryLog, examine, head_file_of
from fedfomo.deployment.encryption import DecryptionError, MessageCipher, Purpose
from fedfomo.deployment.protocol import Envelope, below, part_of, read_message, read_score
from fedfomo.deployment.settings import FederationConfig, FederationFolder, Site, SiteFolder, SiteIdentity
from fedfomo.deployment.site_state import SiteMemory
from fedfomo.engine.checkpoint import Checkpoint, Checkpoints
from fedfomo.engine.tensor_store import TensorStore
from fedfomo.errors import InputError
from fedfomo.io import read_lines, to_json
from fedfomo.report.per_example import PerExampleScores, read_scores
from fedfomo.runs.config import CompareConfig, RunConfig
from fedfomo.runs.config_io import read_toml, write_toml
from fedfomo.runs.records import RunRecord, read_record
from fedfomo.sites.load_sites import load_sites
from toy_problems import ids, numbers

REFUSALS = (InputError, messages.MessageError, DecryptionError)
SIZE, CLIENTS = 1100, 4  # a model long enough to be quantised

Read = Callable[[Path, bytes], Any]
DIGITS = load_digits()
SITE, SERVER = MessageCipher(bytes([1] * 32)), MessageCipher(bytes([2] * 32))
MODEL = torch.arange(SIZE).float() / SIZE
UPLOAD = Upload(MODEL, EvaluationWeights(ids(1, 2, 3), numbers(0.5, -1, 2), numbers(0.25, 0, 0.75)))
SCORE = {"loss": 0.5, "metric": 0.75, "num_examples": 4}


@dataclass(frozen=True)
class Loader:
    """One reader and a file that it takes."""

    whole: bytes
    read: Read


def _envelope(bits: int = 32) -> bytes:
    header = {"uploads": True, "after_update": SCORE, "round": 1, "federation": "f"}
    return Envelope(header, below("upload", messages.pack(UPLOAD))).to_bytes(bits)


def _read_envelope(folder: Path, content: bytes) -> None:
    envelope = Envelope.read(content)
    read_score(envelope.header.get("after_update"))
    upload = read_message(Upload, part_of(envelope.tensors, "upload"), 1e6)
    fault = messages.validate(Upload, upload, SIZE, CLIENTS) or FedFomo().validate(None, upload)  # type: ignore[arg-type]
    if fault:
        raise messages.MessageError(fault)


def _read_encrypted(folder: Path, content: bytes) -> None:
    _read_envelope(folder, SERVER.decrypt(SITE.public_key, content, Purpose.ANSWER))


def _read_memory(folder: Path, content: bytes) -> None:
    memory = SiteMemory(folder)
    for name in ("memory-00001", "answer-00001", "initial"):
        (folder / f"{name}.parcel").write_bytes(hashlib.sha256(content).digest() + content)
    found = memory.before(2)
    if found is not None:
        messages.unpack(Memory, found)
    memory.answer_to(1, "x")
    memory.initial()


def _manifest() -> bytes:
    state = {"model": "a.safetensors#x", "round": '=["int64", [], "AQAAAAAAAAA="]'}
    scores: Any = {3: SCORE}
    whole = Checkpoint(
        "c", 2, state, {1: state}, scores, {2: 1}, asdict(CommunicationCost()), 7, 0, {"a.safetensors": "0" * 64}
    )
    return json.dumps(whole, default=vars).encode()


def _read_manifest(folder: Path, content: bytes) -> None:
    """Read a manifest whose checksum is right, whatever it says."""
    body = content.decode(errors="replace")
    checksum = hashlib.sha256(body.encode(errors="replace")).hexdigest()
    _read_raw_manifest(folder, json.dumps({"checksum": checksum, "checkpoint": body}).encode())


def _read_raw_manifest(folder: Path, content: bytes) -> None:
    (folder / "tensors").mkdir(exist_ok=True)
    tensors = TensorStore(folder / "tensors", durable=False)
    checkpoints = Checkpoints(folder / "checkpoints", tensors.folder, folder / "rounds.jsonl", lambda line: None)
    for old in (folder / "checkpoints").iterdir():
        old.unlink()
    (folder / "checkpoints" / "after-round-00002.json").write_bytes(content)
    found = checkpoints.newest("c")
    if found is not None:
        messages.unpack(Download, tensors.load(found.state))


def _tensor_file() -> bytes:
    return save({"x": MODEL, "ids": ids(1, 2, 3), "n": numbers(1.0)})


def _read_tensor_file(folder: Path, content: bytes) -> None:
    (folder / "a.safetensors").write_bytes(content)
    files = TensorStore(folder, durable=False)
    for name in ("x", "ids", "n"):
        files.load({"field": f"a.safetensors#{name}"})


def _read_spelt_out(folder: Path, content: bytes) -> None:
    TensorStore(folder, durable=False).load({"field": "=" + content.decode(errors="replace")})


def _as_file(name: str, read: Callable[[Path], Any]) -> Read:
    def write_and_read(folder: Path, content: bytes) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        read(path)

    return write_and_read


def _idx(*shape: int) -> bytes:
    head = bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)
    return head + bytes(number % 10 for number in range(int(np.prod(shape))))


def _read_idx(path: Path) -> None:
    labels = path.parent / "labels"
    labels.write_bytes(_idx(5))
    decode_idx(path, labels)


def _npz(**arrays: Any) -> bytes:
    opened = io.BytesIO()
    np.savez_compressed(opened, **arrays)
    return opened.getvalue()


def _image_set() -> bytes:
    images, labels = np.zeros((3, 4, 4), np.uint8), np.arange(3)
    return _npz(x_train=images, y_train=labels, x_test=images, y_test=labels)


def _png() -> bytes:
    opened = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(opened, "PNG")
    return opened.getvalue()


def _groups() -> bytes:
    train, test = (np.zeros(len(part), np.uint8) for part in (DIGITS.train, DIGITS.test))
    return _npz(fingerprint=DIGITS.fingerprint, accuracy=0.5, train_2=train, test_2=test)


def _npy() -> bytes:
    opened = io.BytesIO()
    np.save(opened, np.arange(6, dtype=np.float32))
    return opened.getvalue()


def _read_cached(folder: Path, content: bytes) -> None:
    home = folder / "sets" / "f"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("train_inputs", "train_labels", "test_inputs", "test_labels"):
        (home / f"{name}.npy").write_bytes(content)
    source = folder / "source"
    source.write_bytes(b"")
    note = folder / "sources" / f"{cache._key([source])}.json"
    note.parent.mkdir(exist_ok=True)
    note.write_text(json.dumps({"name": "n", "num_classes": 2, "fingerprint": "f"}))
    cache.cached([source], _refuse, folder)


def _read_note(folder: Path, content: bytes) -> None:
    source = folder / "source"
    source.write_bytes(b"")
    note = folder / "sources" / f"{cache._key([source])}.json"
    note.parent.mkdir(exist_ok=True)
    note.write_bytes(content)
    cache.cached([source], _refuse, folder)


def _refuse() -> DataSet:
    raise InputError("what is cached is of no use")


def _read_embedder(path: Path) -> None:
    network: Any = nn.Linear(2, 2)
    embedding._Checkpoint(path, "i").load(network, torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9))


def _embedder() -> bytes:
    tensors = {
        f"{part}/{name}": t for part in ("weights", "momentum") for name, t in nn.Linear(2, 2).state_dict().items()
    }
    return save(tensors, {"step": "3", "identity": "i"})


def _record() -> bytes:
    score: Any = {0: SCORE}
    whole = RunRecord(
        *(
            "local",
            {},
            0,
            score,
            score,
            CommunicationCost(),
            [[1.0]],
            None,
            {0: 1},
            5,
            {0: {"training": 1.0, "validation": None}},
            [0],
            [0],
            1.0,
            2.0,
        )  # type: ignore[arg-type]
    )
    return to_json(asdict(whole)).encode()


def _table() -> bytes:
    return b"a,b,label\n1,2,0\n3,4.5,1\n"


def _site_part(suffix: str) -> Read:
    def read(folder: Path, content: bytes) -> None:
        place = folder / "sites" / "leeds"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"train{suffix}").write_bytes(content)
        (place / "target.csv").write_bytes(_table())
        load_sites(folder / "sites")

    return read


def _read_log(folder: Path, content: bytes) -> None:
    path = folder / "deliveries.jsonl"
    path.write_bytes(content)
    head_file_of(path).unlink(missing_ok=True)  # of the log before
    examine(path)[1]
    DeliveryLog(path)


def _read_registry(folder: Path, content: bytes) -> None:
    (folder / "federation" / "server").mkdir(parents=True, exist_ok=True)
    found = FederationFolder(folder / "federation")
    found.settings.touch()
    (found.server / "sites.json").write_bytes(content)
    found.registry()
    found.identity()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


MESSAGES: Mapping[str, Loader] = {
    "envelope": Loader(_envelope(), _read_envelope),
    "envelope of 16 bits": Loader(_envelope(16), _read_envelope),
    "envelope of 8 bits": Loader(_envelope(8), _read_envelope),
    "encrypted envelope": Loader(SITE.encrypt(SERVER.public_key, _envelope(), Purpose.ANSWER), _read_encrypted),
    "site's memory": Loader(
        Envelope({"order": "x"}, messages.pack(Memory(MODEL, MODEL, UPLOAD.findings))).to_bytes(), _read_memory
    ),
}
CHECKPOINTS: Mapping[str, Loader] = {
    "manifest": Loader(_json({"checksum": "0" * 64, "checkpoint": "{}"}), _read_raw_manifest),
    "manifest with its checksum": Loader(_manifest(), _read_manifest),
    "tensor file": Loader(_tensor_file(), _read_tensor_file),
    "tensor spelt out": Loader(b'["float32", [2], "AACAPwAAAEA="]', _read_spelt_out),
    "safetensors": Loader(_tensor_file(), _as_file("m.safetensors", read_tensors)),
    "embedder's checkpoint": Loader(_embedder(), _as_file("training.safetensors", _read_embedder)),
}
DATA: Mapping[str, Loader] = {
    "idx": Loader(_idx(5, 3, 3), _as_file("images", _read_idx)),
    "idx.gz": Loader(gzip.compress(_idx(5, 3, 3)), _as_file("images.gz", _read_idx)),
    "cifar": Loader(bytes(2 * 3073), _as_file("b.bin", lambda path: decode_cifar([path], 1, 10))),
    "npz": Loader(_image_set(), _as_file("set.npz", decode_npz)),
    "png": Loader(_png(), _as_file("train/a/1.png", lambda path: decode_images([path], [path]))),
    "cached array": Loader(_npy(), _read_cached),
    "cache's note": Loader(_json({"name": "n", "num_classes": 2, "fingerprint": "f"}), _read_note),
    "groups": Loader(_groups(), _as_file("groups.npz", lambda path: latent_groups._read(path, DIGITS))),
    "site's npz": Loader(_npz(inputs=np.zeros((3, 2), np.float32), labels=np.arange(3)), _site_part(".npz")),
    "site's safetensors": Loader(save({"inputs": MODEL[:3, None], "labels": ids(0, 1, 2)}), _site_part(".safetensors")),
    "site's table": Loader(_table(), _site_part(".csv")),
}
SETTINGS: Mapping[str, Loader] = {
    "run's settings": Loader(write_toml(RunConfig()).encode(), _as_file("r.toml", lambda p: read_toml(p, RunConfig))),
    "comparison's settings": Loader(
        write_toml(CompareConfig()).encode(), _as_file("c.toml", lambda path: read_toml(path, CompareConfig))
    ),
    "federation's settings": Loader(
        write_toml(FederationConfig()).encode(), _as_file("f.toml", lambda path: read_toml(path, FederationConfig))
    ),
    "result": Loader(_record(), _as_file("result.json", lambda path: read_record(path.parent))),
    "log": Loader(_json({"round": 0}) + b"\n" + _json({"round": 1}) + b"\n", _as_file("rounds.jsonl", read_lines)),
    "examination": Loader(_json(asdict(PerExampleScores([[1.0]], None, ""))), _as_file("e.json", read_scores)),
    "cell": Loader(
        _json({"config": {}, "seconds": 1}),
        _as_file("a/b/local-seed-0.json", lambda path: Results(path.parents[2])._load(path)),
    ),
    "delivery log": Loader(_json({"line": 0, "previous": "0" * 64}) + b"\n", _read_log),
    "registry": Loader(_json({"federation": "f", "sites": [asdict(Site("a", 0, "k", "s"))]}), _read_registry),
    "site's card": Loader(
        _json(asdict(SiteIdentity("a", "f", "h:1", "s", False))),
        _as_file("site.json", lambda path: SiteFolder(path.parent).card()),
    ),
}
LOADERS: Mapping[str, Loader] = {**MESSAGES, **CHECKPOINTS, **DATA, **SETTINGS}
