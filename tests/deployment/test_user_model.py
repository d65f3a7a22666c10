"""What a practitioner writes for a federation means what it means to `federate`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from fedfomo.core.client import Client, FederationInfo
from fedfomo.core.local_training import Sgd
from fedfomo.core.losses import minus_absolute_error, squared_error
from fedfomo.core.rng import stream
from fedfomo.deployment.user_model import load_model, load_own_data
from fedfomo.errors import InputError
from fedfomo.runs.config import VALIDATION_FRACTION
from fedfomo.runs.site_data import client_data
from fedfomo.sites.checks import check_sites
from in_memory_transport import MODEL
from toy_problems import points

DATA = """
from toy_problems import points
from fedfomo.core.rng import stream


def load_data(folder, site):
    return tuple(points(size, 0, stream(7, "points", size)) for size in (12, 8))
"""


MODEL_WITH_HELPERS = """
from __future__ import annotations
from dataclasses import dataclass
from sizes_of_one_site import WIDTH
from torch import nn

@dataclass
class Size:
    width: int

loss = "regression"

def make_model():
    return nn.Linear(Size(WIDTH).width, 1)
"""


def test_a_model_may_take_a_loss_by_its_word_and_import_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "sizes_of_one_site.py").write_text("WIDTH = 3\n")
    (tmp_path / "model.py").write_text(MODEL_WITH_HELPERS)
    model = load_model(tmp_path / "model.py", 3).model
    assert (model.criterion, model.metrics.per_example) == (squared_error, minus_absolute_error)
    (tmp_path / "model.py").write_text(MODEL_WITH_HELPERS.replace("regression", "regresion"))
    with pytest.raises(InputError, match="did you mean 'regression'"):
        load_model(tmp_path / "model.py", 3)


def test_a_target_is_divided_as_everywhere_else(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data.py").write_text(DATA)
    found = load_own_data(tmp_path / "data.py", None, "leeds", 3, load_model(tmp_path / "model.py", 3))
    train, target = (points(size, 0, stream(7, "points", size)) for size in (12, 8))
    expected = client_data("leeds", (train, target), VALIDATION_FRACTION, 3)
    assert torch.equal(found.validation.inputs, expected.validation.inputs)
    assert torch.equal(found.test.inputs, expected.test.inputs)
    [card] = check_sites({"leeds": (train, target)}).sites
    assert (card.validation, card.test) == (len(found.validation), len(found.test)) == (4, 4)


LAZY = """
import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, size, noise):
        self.size, self.noise = size, noise

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((2,), float(index % 2)) + self.noise * torch.rand(2), index % 2


def load_data(folder, site):
    return DataLoader(Points(12, 0.5)), Points(8, 0.0)
"""


def test_a_site_reads_its_data_lazily_and_trains_the_same_twice(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data.py").write_text(LAZY)
    own = load_model(tmp_path / "model.py", 0)
    data = load_own_data(tmp_path / "data.py", None, "leeds", 0, own)
    assert [part.is_lazy for part in (data.train, data.validation, data.test)] == [True] * 3
    start = FederationInfo(own.initial, own.model.layout, 1, 2)
    trained = [
        Client(0, data, start, own.model, Sgd(batch_size=4, epochs=2), number, 0).train(own.initial)
        for number in (0, 0, 1)
    ]
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])
