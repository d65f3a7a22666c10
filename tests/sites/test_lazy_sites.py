"""Federations of data sets that are read lazily: the same bits for any number of workers and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fedfomo
from fedfomo import FederationResult, Sgd, federate
from fedfomo.errors import InputError
from fedfomo.simulation.callbacks import Callback, FinishedRound


class Patients(Dataset[Any]):
    """Made-up scans of two kinds beside two values, with as many readings counted; noise is drawn when it is read."""

    def __init__(self, size: int, shift: float, noise: float = 0.0) -> None:
        self.size, self.shift, self.noise = size, shift, noise
        self.reads = 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], int]:
        self.reads += 1
        kind = index % 2
        scan = torch.full((1, 6, 6), kind + self.shift) + self.noise * torch.rand(1, 6, 6)
        return {"scan": scan, "table": torch.tensor([index / self.size, self.shift])}, kind


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scan = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(2 * 16 + 2, 2)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        return self.head(torch.cat([self.scan(inputs["scan"]), inputs["table"]], dim=1))


TRAINER = Sgd(batch_size=8, epochs=2, learning_rate=0.05)


def sites(noise: float = 0.3, num_workers: int = 0) -> dict[str, Any]:
    def part(size: int, shift: float) -> Any:
        data = Patients(size, shift, noise)
        return DataLoader(data, num_workers=num_workers) if num_workers else data

    return {name: (part(20, shift), part(12, shift)) for name, shift in (("a", 0.0), ("b", 0.1), ("c", -0.4))}


def play(given: dict[str, Any], method: str = "fedfomo", **more: Any) -> FederationResult:
    kept = {"rounds": 2, "workers": 0, "progress": False, **more}
    return federate(TwoInputs, given, method=method, trainer=TRAINER, **kept)


def bits(result: FederationResult) -> list[Any]:
    models = [value.tolist() for module in result.models.values() for value in module.state_dict().values()]
    return [models, result.scores, result.local_scores]


def test_several_inputs_federate_to_the_same_bits_for_any_number_of_workers() -> None:
    once = bits(play(sites()))
    assert once == bits(play(sites(num_workers=1), workers=2))
    assert once != bits(play(sites(), seed=1))


@pytest.mark.parametrize("method", ["fedavg", "local", "fedala", "local-all", "ditto", "per-fedavg", "apfl"])
def test_methods_federate_several_inputs(method: str) -> None:
    once = bits(play(sites(), method, baselines=()))
    assert once == bits(play(sites(), method, baselines=()))


class Stop(Callback):
    def round_done(self, round: FinishedRound) -> None:
        if round.round == 0:
            raise KeyboardInterrupt


def test_an_interrupted_federation_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        play(sites(), out=tmp_path, callback=Stop())
    assert bits(play(sites(), out=tmp_path)) == bits(play(sites()))
    with pytest.raises(InputError, match="was begun with other data of a, b, c"):
        play(sites(noise=0.2), out=tmp_path)


def test_every_epoch_reads_every_training_example_anew() -> None:
    given = {"only": (Patients(30, 0.0), Patients(10, 0.0))}
    local = {"method": "local", "rounds": 3, "baselines": ()}
    play(given, **local)
    trained = given["only"][0].reads
    before = trained - 3 * TRAINER.epochs * 30  # some are looked at before: shapes, finite values, digests
    assert 0 < before <= 3 * 30


def test_random_transforms_change_what_is_learnt_and_without_them_lazy_is_in_memory() -> None:
    def stacked(data: Patients) -> tuple[dict[str, Tensor], Tensor]:
        rows = [data[index] for index in range(len(data))]
        inputs = {name: torch.stack([row[0][name] for row in rows]) for name in ("scan", "table")}
        return inputs, torch.tensor([label for _, label in rows])

    still = sites(noise=0.0)
    inside = {name: tuple(stacked(part) for part in parts) for name, parts in still.items()}
    assert bits(play(still)) == bits(play(inside))
    assert bits(play(sites(noise=0.3)))[0] != bits(play(still))[0]


class Slices(Dataset[Any]):
    """Scans in which bright pixels are to be found, as large as they happen to be."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        side = 8 + index % 3
        scan = torch.linspace(-1, 1, side * side).roll(index).view(1, side, side)
        return scan, (scan[0] > 0.2).long()


def to_largest(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    side = max(scan.shape[-1] for scan, _ in items)

    def padded(tensor: Tensor) -> Tensor:
        return nn.functional.pad(tensor, [0, side - tensor.shape[-1], 0, side - tensor.shape[-2]])

    return torch.stack([padded(scan) for scan, _ in items]), torch.stack([padded(mask) for _, mask in items])


def test_masks_of_images_of_different_sizes() -> None:
    def make_model() -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))

    parts = [DataLoader(Slices(size), collate_fn=to_largest) for size in (24, 12, 24, 12)]
    result = federate(
        make_model, {"a": tuple(parts[:2]), "b": tuple(parts[2:])}, rounds=3, workers=0, trainer=Sgd(batch_size=4)
    )
    assert all(score.metric > 0.9 for score in result.scores.values())


class Scans(Patients):
    """Scans alone."""

    def __getitem__(self, index: int) -> Any:
        inputs, kind = super().__getitem__(index)
        return inputs["scan"], kind


def scans() -> dict[str, Any]:
    return {name: (Scans(40, 0.1, 0.2), Scans(20, 0.1)) for name in ("a", "b")}


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 2))


def test_what_needs_all_examples_at_once_says_so() -> None:
    with pytest.raises(InputError, match="these are read lazily: choose another, or give tensors in memory"):
        federate(flat, scans(), method="mocha-linear", rounds=1, workers=0, baselines=(), trainer=TRAINER)


def test_a_dataset_that_fails_is_named_before_anything_is_run() -> None:
    class Broken(Patients):
        def __getitem__(self, index: int) -> Any:
            raise OSError("no such scan")

    with pytest.raises(Exception, match="no such scan"):
        play({"a": (Broken(3, 0.0), Patients(4, 0.0))})


def test_lazy_data_under_privacy() -> None:
    privacy = fedfomo.Privacy(noise=1.0, clip=1.0, validation_noise=1.0)
    once, again = (federate(flat, scans(), rounds=2, workers=0, privacy=privacy, trainer=TRAINER) for _ in range(2))
    assert bits(once) == bits(again)
    assert once.spent is not None
