"""Sites of one data set: by a column, by a function, of Hugging Face's and Flower's data sets, and LEAF's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from fedfomo import federate
from fedfomo.errors import InputError
from fedfomo.sites.partition import Rows, load_leaf, partition


class ArrowLike:
    """What `datasets.Dataset` offers of itself: columns by name, rows as dicts."""

    def __init__(self, columns: dict[str, list[Any]]) -> None:
        self.columns_held = columns
        self.rows_read = 0

    @property
    def column_names(self) -> list[str]:
        return [*self.columns_held]

    def __len__(self) -> int:
        return len(next(iter(self.columns_held.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.columns_held[key]
        self.rows_read += 1
        return {name: values[key] for name, values in self.columns_held.items()}


def images(number: int) -> ArrowLike:
    pictures = [Image.new("RGB", (4, 4), (index, 0, 255)) for index in range(number)]
    writers = [f"writer {index % 3}" for index in range(number)]
    return ArrowLike({"image": pictures, "writer": writers, "label": [index % 2 for index in range(number)]})


def test_tensors_by_a_function_of_the_index() -> None:
    data = torch.arange(20).float()[:, None], torch.arange(20) % 2
    sites = partition(data, by=lambda index: "low" if index < 8 else "high", target_fraction=0.25)
    sizes = {name: (len(train), len(target)) for name, (train, target) in sites.items()}
    assert sizes == {"high": (9, 3), "low": (6, 2)}
    assert sorted(x for part in sites["low"] for x in part.inputs[:, 0].tolist()) == list(range(8))
    again = partition(data, by=["low"] * 8 + ["high"] * 12, target_fraction=0.25)
    assert torch.equal(again["low"][0].inputs, sites["low"][0].inputs)
    other = partition(data, by=["low"] * 8 + ["high"] * 12, target_fraction=0.25, seed=1)
    assert not torch.equal(other["high"][0].inputs, sites["high"][0].inputs)


def test_a_frame_by_a_column() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "hospital": ["leeds", "turin"] * 10,
            "age": range(20),
            "sex": ["f", "f", "m", "m"] * 5,
            "ill": ["no", "yes"] * 10,
        }
    )
    sites = partition(frame, by="hospital", label="ill", standardise=True)
    assert sites.encoding is not None
    assert sites.encoding.features == ["age", "sex=f", "sex=m"]
    assert {name: [len(part) for part in parts] for name, parts in sites.items()} == {"leeds": [6, 4], "turin": [6, 4]}
    assert set(sites["leeds"][0].labels.tolist()) == {0}


def test_a_data_set_of_hugging_face_by_a_column_is_read_lazily() -> None:
    data = images(30)
    sites = partition(data, by="writer", inputs="image")
    assert data.rows_read == 0
    train, _ = sites["writer 1"]
    batch = next(train.batches(3))
    assert batch.inputs.shape == (3, 3, 4, 4)
    assert all(round(255 * float(x)) % 3 == 1 for x in batch.inputs[:, 0, 0, 0])
    assert torch.equal(train.known_labels[:3], batch.labels)
    result = federate(lambda: nn.Sequential(nn.Flatten(), nn.Linear(48, 2)), sites, rounds=1, workers=0)
    assert set(result.models) == {"writer 0", "writer 1", "writer 2"}


def test_partitions_that_are_loaded_one_by_one() -> None:
    """As `FederatedDataset.load_partition` of flwr-datasets gives them."""
    parts = [images(8), images(6)]
    sites = {f"client {k}": (Rows(part, "image"), Rows(part, ("image", "writer"))) for k, part in enumerate(parts)}
    assert sites["client 1"][0][5][0].shape == (3, 4, 4)
    assert sites["client 1"][1][5][0]["writer"] == "writer 2"


def leaf(folder: Path, **parts: dict[str, list[Any]]) -> Path:
    for name, users in parts.items():
        (folder / name).mkdir()
        data = {user: {"x": x, "y": [index % 2 for index in range(len(x))]} for user, x in users.items()}
        content = {"users": [*users], "num_samples": [len(x) for x in users.values()], "user_data": data}
        (folder / name / "all_data_0.json").write_text(json.dumps(content))
    return folder


def test_files_of_leaf(tmp_path: Path) -> None:
    users = {"f0001": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "f0002": [[1.0, 1.0]]}
    sites = load_leaf(leaf(tmp_path, train=users, test=users))
    assert torch.equal(sites["f0001"][0].inputs, torch.tensor(users["f0001"]))
    assert sites["f0001"][1].labels.tolist() == [0, 1, 0]
    result = federate(lambda: nn.Linear(2, 2), sites, rounds=1, workers=0, baselines=())
    assert set(result.models) == {"f0001", "f0002"}


def test_words_of_leaf_are_made_numbers_by_a_function(tmp_path: Path) -> None:
    users = {"HAMLET": ["to be", "or no"]}
    sites = load_leaf(leaf(tmp_path, train=users, test=users), lambda x: torch.tensor([[*line.encode()] for line in x]))
    assert sites["HAMLET"][0].inputs.shape == (2, 5)


@pytest.mark.parametrize(
    ("by", "words"),
    [("ward", "there is no column 'ward': there are image, writer, label"), (["a"], "1 owners for 30 examples")],
)
def test_what_names_no_owner_is_refused(by: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        partition(images(30), by=by, inputs="image")


def test_users_in_one_part_alone_are_named(tmp_path: Path) -> None:
    leaf(tmp_path, train={"a": [[1.0]], "b": [[1.0]]}, test={"a": [[1.0]]})
    with pytest.raises(InputError, match="b have no data in both train and test"):
        load_leaf(tmp_path)
