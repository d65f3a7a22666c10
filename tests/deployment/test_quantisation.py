from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedfomo.core.messages import MessageError
from fedfomo.deployment.protocol import BLOCK, quantise, restore
from fedfomo.deployment.settings import FederationFolder
from in_memory_transport import make_federation, run_federation


@given(st.integers(BLOCK, 3 * BLOCK + 5), st.sampled_from([8, 16]), st.integers(0, 100))
def test_no_coordinate_is_off_by_more_than_half_a_step(size: int, bits: int, seed: int) -> None:
    model = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 10 ** (seed % 7 - 3)
    small = quantise({"model": model}, bits)
    found = restore(small)["model"]
    assert found.dtype == torch.float32
    steps = small["model:step"].repeat_interleave(BLOCK)[:size]
    assert bool(((found - model).abs() <= 0.5001 * steps + 1e-6 * model.abs()).all())
    assert small["model:levels"].element_size() * 8 == bits


def test_numbers_worked_by_hand() -> None:
    model = torch.cat((torch.zeros(BLOCK - 2), torch.tensor([255.0, 100.4, 7.0])))
    small = quantise({"model": model, "count": torch.tensor(3), "few": torch.ones(5)}, 8)
    assert small["model:levels"][-4:].tolist() == [0, 255, 100, 0]
    assert small["model:low"].tolist() == [0.0, 7.0]
    assert small["model:step"].tolist() == [1.0, 0.0]
    restored = restore(small)
    assert restored["model"][-3:].tolist() == [255.0, 100.0, 7.0]
    assert restored.keys() == {"model", "count", "few"}


def test_with_32_bits_nothing_changes() -> None:
    model = torch.randn(5000)
    assert torch.equal(restore(quantise({"model": model}, 32))["model"], model)


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_does_not_become_so(broken: float) -> None:
    model = torch.ones(2000)
    model[1500] = broken
    assert not bool(torch.isfinite(restore(quantise({"model": model}, 8))["model"]).all())


def test_a_form_that_is_none_is_refused() -> None:
    small = quantise({"model": torch.randn(2000)}, 8)
    for wrong in (
        {"model:levels": small["model:levels"]},
        {**small, "model:low": small["model:low"][:1]},
        {**small, "model:levels": small["model:levels"].float()},
        {**small, "model:step": small["model:step"].double()},
        {"model:low": small["model:low"], "model:step": small["model:step"]},
        {**small, "model:more": small["model:low"]},
        {**small, "model": torch.randn(2000)},
    ):
        with pytest.raises(MessageError, match=r"'model[':]"):
            restore(wrong)


def _bytes(folder: FederationFolder) -> int:
    lines = (folder.server / "run" / "rounds.jsonl").read_text().splitlines()
    return sum(json.loads(line)["bytes_received"] for line in lines)


def test_a_federation_sends_a_quarter_and_half_of_the_bytes(tmp_path: Path) -> None:
    sizes: dict[int, int] = {}
    for bits in (32, 16, 8):
        folder = make_federation(tmp_path / str(bits), bits=bits)
        run_federation(folder)
        sizes[bits] = _bytes(folder)
    overhead = 2 * 3 * 1200  # headers and seals of the answers of two rounds
    assert sizes[16] < sizes[32] / 2 + overhead
    assert sizes[8] < sizes[32] / 4 + overhead


def test_a_model_without_coordinates_is_restored_as_one() -> None:
    nothing = torch.empty(0)
    parts = {"model:levels": nothing.to(torch.uint8), "model:low": nothing, "model:step": nothing}
    assert restore(parts)["model"].shape == (0,)
