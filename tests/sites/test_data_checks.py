"""What `fedfomo check` says of data that would mislead: unscaled columns, random transforms, classes never seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedfomo.sites.checks import check_sites


class RandomShift:
    """What a transform of torchvision is called and looks like."""

    def __repr__(self) -> str:
        return "RandomShift()"

    def __call__(self, picture: Tensor) -> Tensor:
        return picture + torch.rand(())


class Varied(Dataset[Any]):
    """Pictures that are shifted at random when they are read, or are not."""

    def __init__(self, kind: str = "varies") -> None:
        self.kind = kind
        self.transform = RandomShift() if kind != "plain" else None
        self.targets = [0, 1, 1, 0] * 5
        self.own = torch.Generator().manual_seed(0)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.full((1, 3, 3), float(index))
        if self.kind == "varies" and self.transform is not None:
            picture = self.transform(picture)
        if self.kind == "own":
            picture = picture + torch.rand((), generator=self.own)
        return picture, self.targets[index]


def warnings_of(train: Any, target: Any) -> str:
    return "\n".join(check_sites({"leeds": (train, target)}).warnings)


def test_transforms_that_vary_in_training_alone_are_as_they_should_be() -> None:
    assert "transform" not in warnings_of(Varied(), Varied("plain"))


def test_frozen_transforms_are_noticed() -> None:
    assert "leeds: its random transforms are frozen" in warnings_of(Varied("frozen"), Varied("plain"))


def test_transforms_of_what_models_are_judged_by_are_noticed() -> None:
    said = warnings_of(Varied(), Varied())
    assert "leeds: its validation data are transformed at random, the same way every time: leave that out" in said


def test_generators_that_no_seed_reaches_are_noticed() -> None:
    said = warnings_of(Varied("own"), Varied("plain"))
    assert "leeds: its training data draw from a random generator of their own, which no seed reaches" in said


def table(*labels: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(len(labels), 2, generator=torch.Generator().manual_seed(0))
    return inputs * torch.tensor([1.0, scale]), torch.tensor(labels)


def test_unscaled_columns_are_noticed_with_a_way_out() -> None:
    said = warnings_of(table(*[0, 1] * 40, scale=5000), table(*[0, 1] * 40, scale=5000))
    assert "unscaled columns of the inputs: 1 (mean" in said
    assert "standardise=True" in said
    assert "unscaled" not in warnings_of(table(*[0, 1] * 40), table(*[0, 1] * 40))


def test_classes_that_a_site_has_never_seen_are_noticed() -> None:
    said = warnings_of(table(*[0, 1] * 40), table(*[0, 1, 2, 3] * 20))
    assert "leeds: class 2, 3 is in its target, but not in its training data" in said
