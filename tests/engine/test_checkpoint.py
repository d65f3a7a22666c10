"""Manifests that were forged: their checksum is right, and what they say is not."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fedfomo.core.round import CommunicationCost
from fedfomo.engine.checkpoint import Checkpoint, Checkpoints


def forged(folder: Path, **changes: Any) -> Checkpoints:
    whole = Checkpoint("c", 2, {}, {}, {}, {}, asdict(CommunicationCost()), 0, 0, {})
    fields = {("bills" if name == "ledgers" else name): value for name, value in vars(whole).items()}
    body = changes.pop("body", None) or json.dumps({**fields, **changes})
    checkpoints = Checkpoints(folder / "checkpoints", folder / "tensors", folder / "rounds.jsonl", lambda line: None)
    content = {"checksum": hashlib.sha256(body.encode()).hexdigest(), "checkpoint": body}
    (folder / "checkpoints" / "after-round-00002.json").write_text(json.dumps(content))
    return checkpoints


def test_an_honest_one_is_taken(tmp_path: Path) -> None:
    assert forged(tmp_path).newest("c") is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"state": 3},
        {"state": {"x": 3}},
        {"state": {"x": "../secret#x"}},
        {"state": {"x": ".#x"}},
        {"memories": {"one": {}}},
        {"scores_after_training": {"1": {"loss": 1}}},
        {"rounds_done": "two"},
        {"rounds_done": 3},
        {"log_bytes": [1]},
        {"log_bytes": float("inf")},
        {"more": 1},
        {"body": "[" * 100_000},
        {"body": "[]"},
    ],
)
def test_nonsense_is_put_aside(tmp_path: Path, changes: dict[str, Any]) -> None:
    secret = b"of another folder"
    (tmp_path / "secret").write_bytes(secret)
    changes |= {} if "body" in changes else {"checksums": {"../secret": hashlib.sha256(secret).hexdigest()}}
    assert forged(tmp_path, **changes).newest("c") is None
    assert [path.suffix for path in (tmp_path / "checkpoints").iterdir()] == [".damaged"]


def test_the_newest_checkpoint_is_that_of_the_most_rounds_however_many_there_are(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "checkpoints", tmp_path, tmp_path / "log", warn=print)
    for rounds_done in range(99_997, 100_002):
        checkpoints.save(Checkpoint("", rounds_done, {}, {}, {}, {}, {}, 0, 0, {}))
    found = checkpoints.newest("")
    assert found is not None
    assert found.rounds_done == 100_001
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"after-round-100000.json", "after-round-100001.json"}
