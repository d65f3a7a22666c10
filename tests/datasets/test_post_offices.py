"""The demo's sites: who trains on what, and must read what."""

import torch

from fedfomo.datasets.bundled import load_digits
from fedfomo.datasets.post_offices import OFFICES, QUARTER_TURNS, TARGET, TRAIN, post_office_sites


def turned_back(images: torch.Tensor, kind: str) -> torch.Tensor:
    return torch.rot90(images, -QUARTER_TURNS[kind], (2, 3))


def test_every_office_has_images_of_its_kinds_and_no_image_is_used_twice() -> None:
    digits = load_digits()
    known = {image.numpy().tobytes() for image in torch.cat((digits.train.inputs, digits.test.inputs))}
    sites = post_office_sites()
    seen: list[bytes] = []
    for office in OFFICES:
        train, target = sites[office.name]
        assert (len(train), len(target)) == (TRAIN, TARGET)
        for part, kind in ((train, office.trains_on), (target, office.reads)):
            seen += [image.contiguous().numpy().tobytes() for image in turned_back(part.inputs, kind)]
    assert set(seen) <= known
    assert len(set(seen)) == len(seen)


def test_turning_a_corner_by_a_quarter_twice_puts_it_opposite() -> None:
    image = torch.zeros(1, 1, 2, 2)
    image[0, 0, 0, 0] = 1.0  # the upper left corner
    assert torch.rot90(image, QUARTER_TURNS["upside down"], (2, 3))[0, 0].tolist() == [[0, 0], [0, 1]]


def test_three_offices_must_read_what_they_do_not_train_on() -> None:
    assert [office.name for office in OFFICES if office.trains_on != office.reads] == ["Kilrush", "Tralee", "Cork"]
    kinds = {office.trains_on for office in OFFICES if office.trains_on == office.reads}
    assert kinds == set(QUARTER_TURNS)
