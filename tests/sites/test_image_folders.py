"""Sites whose images stay in files: a folder for each part, in it one for each class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import fedfomo
from fedfomo import Sgd, federate
from fedfomo.errors import InputError
from fedfomo.sites.image_folders import ImageFolder


def paint(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (12, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), colour, dtype=np.uint8)).save(path)


def clinics(folder: Path, size: tuple[int, int] = (12, 12)) -> Path:
    """Paint red, green and, at one site alone, blue images."""
    for site, kinds in (("leeds", "rg"), ("turin", "rgb")):
        for part, number in (("train", 6), ("target", 8)):
            for kind in kinds:
                for index in range(number):
                    colour = tuple((200 + index) * (kind == name) + index for name in "rgb")
                    paint(folder / site / part / kind / f"{index}.png", colour, size)  # type: ignore[arg-type]
    return folder


def test_folders_are_classes_numbered_alike_at_all_sites(tmp_path: Path) -> None:
    sites = fedfomo.load_sites(clinics(tmp_path))
    assert sites.classes == ("b", "g", "r")
    train, target = sites["leeds"]
    assert (train.is_lazy, len(train), len(target)) == (True, 12, 16)
    assert sorted(set(train.known_labels.tolist())) == [1, 2]
    image, label = train.take(torch.tensor([0])).read().inputs[0], train.known_labels[0]
    assert image.shape == (3, 12, 12)
    assert (label, image[1].mean() > 0.7, image[0].mean() < 0.1) == (1, True, True)  # green


def test_images_in_files_federate(tmp_path: Path) -> None:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))

    sites = fedfomo.load_sites(clinics(tmp_path))
    result = federate(make_model, sites, rounds=4, workers=0, trainer=Sgd(batch_size=4, learning_rate=0.3))
    assert all(score.metric == 1 for score in result.scores.values())
    assert "labels" in (result.folder / "environment.json").read_text()


def test_images_of_different_sizes_are_scaled_if_asked(tmp_path: Path) -> None:
    clinics(tmp_path, (12, 9))
    paint(tmp_path / "leeds" / "train" / "r" / "0.png", (200, 0, 0), (40, 30))
    with pytest.raises(InputError, match="do not fit into one tensor"):
        fedfomo.load_sites(tmp_path)["leeds"][0].read()
    train, _ = fedfomo.load_sites(tmp_path, image_size=8)["leeds"]
    assert train.read().inputs.shape == (12, 3, 8, 8)


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    clinics(tmp_path)
    (tmp_path / "leeds" / "target" / "g" / "3.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"site 'leeds', .* data: .*leeds/target/g/3.png cannot be read"):
        federate(lambda: nn.Sequential(nn.Flatten(), nn.Linear(432, 3)), fedfomo.load_sites(tmp_path), workers=0)


def test_classes_may_be_told_where_not_all_sites_are_here(tmp_path: Path) -> None:
    clinics(tmp_path)
    assert ImageFolder(tmp_path / "leeds" / "train", ["r", "b", "g"]).targets.tolist() == [0] * 6 + [2] * 6
    with pytest.raises(InputError, match=r"leeds/train holds the classes g, which are none: the classes are r, b"):
        ImageFolder(tmp_path / "leeds" / "train", ["r", "b"])


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "leeds" / "train").mkdir(parents=True)
    (tmp_path / "leeds" / "target").mkdir()
    with pytest.raises(InputError, match="leeds/train holds no images: it takes a folder for each class"):
        fedfomo.load_sites(tmp_path)


def test_one_site_alone_takes_the_classes_of_all(tmp_path: Path) -> None:
    clinics(tmp_path)
    words = r"leeds holds images of g, r, which other sites may number otherwise: give classes= with the names"
    with pytest.raises(InputError, match=words):
        fedfomo.load_site(tmp_path / "leeds")
    together = fedfomo.load_sites(tmp_path)
    train, _ = fedfomo.load_site(tmp_path / "leeds", classes=together.classes)
    assert torch.equal(train.known_labels, together["leeds"][0].known_labels)
