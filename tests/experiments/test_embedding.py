from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.iclr2021.latent_groups import embedding
from experiments.iclr2021.latent_groups.embedding import (
    Progress,
    Schedule,
    build_embedding,
    schedule_for,
    train_embedder,
)
from fedfomo.core import networks
from fedfomo.core.data import Examples
from fedfomo.core.rng import stream
from fedfomo.datasets.bundled import DataSet
from fedfomo.datasets.standardise import Scale
from fedfomo.errors import InputError

SCHEDULE = Schedule(sides=(6, 8), batch_size=8, padding=1)


@pytest.fixture(autouse=True)
def _narrow_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "_EMBEDDING_WIDTH", 16)
    monkeypatch.setattr(networks, "_VGG11_WIDTHS", ((4,), (8,)))
    monkeypatch.setattr(embedding, "_REPORT_EVERY", 2)


@pytest.fixture
def data() -> DataSet:
    rng = stream(0, "test images")
    labels = torch.arange(28) % 2
    # One class is brighter than the other, so there is something to learn.
    images = torch.rand(28, 3, 8, 8, generator=rng) / 2 + labels[:, None, None, None] / 2
    return DataSet("two", Examples(images[:20], labels[:20]), Examples(images[20:], labels[20:]), 2, "a fingerprint")


def weights(network: torch.nn.Module) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in network.state_dict().values()]


def test_an_interrupted_training_reaches_the_same_weights(data: DataSet, tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        if progress.step == 4:
            raise KeyboardInterrupt

    whole = train_embedder(data, tmp_path / "whole", SCHEDULE)
    with pytest.raises(KeyboardInterrupt):
        train_embedder(data, tmp_path / "cut", SCHEDULE, interrupt, seconds_between_checkpoints=0)
    reports: list[Progress] = []
    resumed = train_embedder(data, tmp_path / "cut", SCHEDULE, reports.append)
    assert [report.step for report in reports] == [4, 6]  # it had stopped after 3 steps of 6
    for expected, found in zip(weights(whole), weights(resumed), strict=True):
        assert torch.equal(expected, found)


def test_the_embedding_is_built_once(data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = build_embedding(data, tmp_path, SCHEDULE)
    assert built.rows.shape == (28, 16)
    assert built.rows.dtype == np.float16
    assert 0 <= built.accuracy <= 1
    network = train_embedder(data, tmp_path, SCHEDULE).eval()  # is done already, so this only loads it
    scale = Scale.of(data.train.inputs)
    with torch.no_grad():
        test_rows = network.embed(scale(data.test.inputs).contiguous(memory_format=torch.channels_last)).to(
            torch.float16
        )
    np.testing.assert_array_equal(built.rows[20:], test_rows.numpy())
    monkeypatch.setattr(embedding, "train_embedder", lambda *_: pytest.fail("trained again"))
    assert build_embedding(data, tmp_path, SCHEDULE).accuracy == built.accuracy


def test_it_learns(data: DataSet, tmp_path: Path) -> None:
    assert build_embedding(data, tmp_path, Schedule(sides=(8,) * 20, batch_size=8, padding=1)).accuracy == 1


def test_a_folder_of_another_training_is_refused(data: DataSet, tmp_path: Path) -> None:
    build_embedding(data, tmp_path, SCHEDULE)
    for build in (build_embedding, train_embedder):
        with pytest.raises(InputError, match="belongs to other data or to another schedule: remove it"):
            build(data, tmp_path, Schedule(sides=(8,), batch_size=8))


def test_the_rate_rises_then_falls() -> None:
    schedule = Schedule(peak_rate=1.0, warm_up=0.25)
    assert [schedule.rate(progress) for progress in (0, 0.125, 0.25, 0.625, 1)] == [0, 0.5, 1, 0.5, 0]


def test_crops_are_windows_of_the_padded_image_and_half_are_mirrored() -> None:
    images = torch.arange(3 * 4 * 4, dtype=torch.float32).reshape(1, 3, 4, 4).repeat(200, 1, 1, 1)
    padded = torch.nn.functional.pad(images[:1], [1] * 4, mode="reflect")[0]
    windows = [padded[:, top : top + 4, left : left + 4] for top in range(3) for left in range(3)]
    mirrored = [window.flip(2) for window in windows]
    found = embedding._augment(images, Schedule(padding=1), 4, stream(0, "crops"))
    plain = sum(any(torch.equal(image, window) for window in windows) for image in found)
    turned = sum(any(torch.equal(image, window) for window in mirrored) for image in found)
    assert plain + turned >= 200
    assert 70 < plain < 160
    unflipped = embedding._augment(images, Schedule(padding=1, flip=False), 4, stream(0, "crops"))
    assert all(any(torch.equal(image, window) for window in windows) for image in unflipped)


def test_images_are_scaled_to_the_epochs_side() -> None:
    assert embedding._augment(torch.rand(2, 3, 8, 8), Schedule(), 6, stream(0, "sides")).shape == (2, 3, 6, 6)


def test_digits_are_not_mirrored(data: DataSet) -> None:
    assert schedule_for(data).flip
    assert not schedule_for(DataSet("mnist", data.train, data.test, 2, "")).flip
