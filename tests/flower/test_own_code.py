"""What a practitioner writes for a federation means what it means to `federate`."""

from __future__ import annotations

from pathlib import Path

import torch

from fedfomo.checks import check_sites
from fedfomo.flower.own_code import load_model, load_own_data
from fedfomo.randomness import stream
from fedfomo.sites import VALIDATION_FRACTION, client_data
from loopback import MODEL
from worlds import points

DATA = """
from worlds import points
from fedfomo.randomness import stream


def load_data(folder, site):
    return tuple(points(size, 0, stream(7, "points", size)) for size in (12, 8))
"""


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
