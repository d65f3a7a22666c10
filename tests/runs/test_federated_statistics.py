"""Means and deviations of all sites, from what each tells: worked by hand, exact or with noise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import fedfomo
from fedfomo import Standardise, federate
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.given_data import as_examples
from fedfomo.core.rng import stream
from fedfomo.errors import InputError
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.private_data import SeededNoise
from fedfomo.runs.federated_statistics import Moments, Scaling, bounded_sums, scaled_alike
from fedfomo.runs.site_data import in_two_parts


def column(*values: float) -> Any:
    return np.array(values)[:, None]


def test_moments_of_two_sites_are_those_of_all_values() -> None:
    both = Moments.of(column(1, 2, 3)).joined(Moments.of(column(5, math.nan)))
    # Mean (1 + 2 + 3 + 5) / 4 = 2.75; squares 1.75² + 0.75² + 0.25² + 2.25² = 8.75.
    assert [float(part[0]) for part in (both.counts, both.means, both.squares)] == [4, 2.75, 8.75]
    assert both.deviations[0] == pytest.approx(math.sqrt(8.75 / 4))


def test_far_from_zero_nothing_is_cancelled() -> None:
    both = Moments.of(column(1e9, 1e9 + 2)).joined(Moments.of(column(1e9 + 1)))
    assert both.squares[0] == pytest.approx(2.0)


def test_bounded_sums_by_hand() -> None:
    # Bounds 0 to 10: 2 → −0.6, 12 is clipped to 10 → 1, and one is missing.
    assert bounded_sums(column(2, 12, math.nan), (0, 10)).ravel().tolist() == pytest.approx([2, 0.4, 1.36])
    image = np.array([[[[0.0, 10.0], [10.0, 10.0]]]])  # unit: −1, 1, 1, 1
    assert bounded_sums(image, (0, 10)).ravel().tolist() == pytest.approx([1, 0.5, 1])


def test_without_noise_bounded_sums_give_the_same_moments() -> None:
    values = column(1, 2, 3, 5)
    told = Moments.noisy(bounded_sums(values, (0, 8)), (0, 8), 0.0, SeededNoise(stream(0)))
    exact = Moments.of(values)
    for one, other in ((told.counts, exact.counts), (told.means, exact.means), (told.squares, exact.squares)):
        assert np.allclose(one, other)


def test_noise_is_as_large_as_one_record_times_the_multiplier() -> None:
    """One column tells three sums, of which a record changes √3 at most in length."""
    source = SeededNoise(stream(0))
    base = np.full((3, 1), 1000.0)
    counts = [float(Moments.noisy(base, (-1, 1), 2.0, source).counts[0]) for _ in range(2000)]
    assert np.std(counts) == pytest.approx(2.0 * math.sqrt(3), rel=0.05)
    assert Standardise(noise=5.0, bounds=(0, 1)).epsilon() == pytest.approx(0.9, abs=0.2)
    assert Standardise().epsilon() == math.inf


def site(*values: float) -> Examples:
    return Examples(torch.tensor([[value, 7.0] for value in values]), torch.zeros(len(values), dtype=torch.int64))


def test_sites_are_scaled_alike_and_by_training_data_alone() -> None:
    clients = [ClientData(site(1, 2, 3), site(100), site(4)), ClientData(site(5), site(), site())]
    scaled, scaling = scaled_alike(clients, Standardise())
    deviation = math.sqrt(8.75 / 4)
    assert scaling.means == [[2.75, 7.0]]
    assert scaling.deviations == [[pytest.approx(deviation), 1.0]]  # what never varies is left at 0
    assert scaled[0].test.inputs[0].tolist() == pytest.approx([(4 - 2.75) / deviation, 0])
    assert scaled[1].train.inputs[0].tolist() == pytest.approx([(5 - 2.75) / deviation, 0])


class Pictures(Dataset[Any]):
    def __init__(self, brightness: float) -> None:
        self.brightness = brightness
        self.targets = [0, 1] * 8

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], int]:
        rng = torch.Generator().manual_seed(index)
        picture = torch.rand(3, 4, 4, generator=rng) + self.brightness + 50 * torch.arange(3).view(3, 1, 1)
        return {"picture": picture, "age": torch.tensor(20.0 + index)}, index % 2


def test_channels_of_lazy_pictures_are_scaled_as_they_are_read() -> None:
    given = [as_examples(Pictures(brightness)) for brightness in (0.0, 10.0)]
    scaled, scaling = scaled_alike([ClientData(part, part, part) for part in given], Standardise())
    read = [own.train.read() for own in scaled]  # type: ignore[attr-defined]
    pictures = torch.cat([batch.inputs["picture"] for batch in read]).movedim(1, 0).flatten(1)
    ages = torch.cat([batch.inputs["age"] for batch in read])
    assert torch.allclose(pictures.mean(1), torch.zeros(3), atol=1e-4)
    assert torch.allclose(pictures.std(1, correction=0), torch.ones(3), atol=1e-4)
    assert (float(ages.mean()), float(ages.std(correction=0))) == pytest.approx((0, 1), abs=1e-5)
    assert scaled[0].train.known_labels.tolist() == [0, 1] * 8
    assert torch.equal(scaling(given[0].read().inputs)["picture"], read[0].inputs["picture"])  # type: ignore[attr-defined]


class Rows(Dataset[Any]):
    """Gives NumPy arrays, as many a Dataset does."""

    def __init__(self) -> None:
        self.rows = (np.random.default_rng(0).normal(size=(40, 3)) * 10 + 50).astype(np.float32)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.rows[index], index % 2


def in_thousands(items: list[tuple[Any, int]]) -> tuple[Tensor, Tensor]:
    rows, labels = zip(*items, strict=True)
    return torch.from_numpy(np.stack(rows) * 1000), torch.tensor(labels)


@pytest.mark.parametrize("given", [Rows(), DataLoader(Rows(), collate_fn=in_thousands)])
def test_lazy_arrays_are_scaled_as_they_were_measured(given: Any) -> None:
    part = as_examples(given)
    (scaled,), scaling = scaled_alike([ClientData(part, part, part)], Standardise())
    batch = next(scaled.train.batches(40))
    assert torch.allclose(batch.inputs.mean(0), torch.zeros(3), atol=1e-4)
    assert torch.allclose(batch.inputs.std(0, correction=0), torch.ones(3), atol=1e-4)
    assert torch.equal(batch.inputs, scaling(next(part.batches(40)).inputs))


def test_samples_in_two_parts_are_found_under_a_scaling_too() -> None:
    part = as_examples(Rows())
    (scaled,), _ = scaled_alike([ClientData(part, part, part)], Standardise())
    assert in_two_parts(scaled) == in_two_parts(ClientData(part, part, part))
    assert [number for _, _, number in in_two_parts(scaled)] == [40, 40, 40]


def test_a_loop_of_ones_own_never_reads_past_the_scaling() -> None:
    def loop(model: nn.Module, data: Dataset[Any], context: Any) -> None:
        rows = torch.stack([data[n][0] for n in range(40)])
        assert torch.allclose(rows.mean(0), torch.zeros(3), atol=1e-4)

    def run(given: Any) -> fedfomo.FederationResult:
        sites, usual = {"a": (given, given, given)}, {"rounds": 1, "workers": 0, "baselines": ()}
        return federate(lambda: nn.Linear(3, 2), sites, standardise=True, trainer=loop, **usual)  # type: ignore[arg-type]

    run(Rows())
    with pytest.raises(InputError, match="site 'a': inputs are scaled behind the collate function"):
        run(DataLoader(Rows(), collate_fn=in_thousands))


def unscaled(seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(120, 2, generator=stream(seed))
    return x * torch.tensor([1.0, 30_000.0]) + torch.tensor([0.0, 1e6]), (x.sum(1) > 0).long()


SITES = {name: (unscaled(seed), unscaled(seed + 9)) for seed, name in enumerate("ab")}


def test_unscaled_columns_teach_nothing_and_scaled_ones_do() -> None:
    def run(**more: Any) -> fedfomo.FederationResult:
        return federate(lambda: nn.Linear(2, 2), SITES, rounds=3, workers=0, baselines=(), **more)

    scaled = run(standardise=True)
    assert all(score.metric > 0.9 for score in scaled.scores.values())
    assert all(score.metric < 0.8 for score in run().scores.values())
    assert scaled.scaling is not None
    served = scaled.serve(SITES["a"][1])
    assert min(served.losses.values()) < 0.5
    noisy = run(standardise=Standardise(noise=1.0, bounds=(-10, 2e6)))
    assert noisy.scaling is not None
    assert noisy.scaling != scaled.scaling


def test_private_records_are_not_told_without_noise() -> None:
    with pytest.raises(InputError, match=r"would leave without noise: give standardise=Standardise\(noise="):
        federate(lambda: nn.Linear(2, 2), SITES, standardise=True, privacy=fedfomo.Privacy(noise=1.0), workers=0)


def test_noise_needs_bounds() -> None:
    with pytest.raises(InputError, match=r"noisy statistics need bounds=\(least, greatest\)"):
        Standardise(noise=1.0)


def test_frames_given_to_federate_have_a_column_label() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [0.0, 1.0] * 20, "label": ["no", "yes"] * 20})
    sites: Any = {"a": (frame, frame)}
    result = federate(lambda: nn.Linear(1, 2), sites, rounds=8, workers=0, baselines=(), standardise=True)
    assert result.scores["a"].metric == 1


def test_in_deployment_noise_is_the_systems_and_a_run_goes_on_with_what_it_drew(tmp_path: Path) -> None:
    def scaling_of(mode: Literal["research", "deployment"], out: Path) -> Scaling | None:
        private = Privacy(noise=1.0, mode=mode)
        how = Standardise(noise=1.0, bounds=(-10, 2e6))
        usual = {"rounds": 1, "workers": 0, "baselines": (), "method": "fedavg"}
        return federate(lambda: nn.Linear(2, 2), SITES, standardise=how, privacy=private, out=out, **usual).scaling  # type: ignore[arg-type]

    begun = scaling_of("deployment", tmp_path / "one")
    assert begun is not None
    assert scaling_of("deployment", tmp_path / "one") == begun
    assert scaling_of("deployment", tmp_path / "other") != begun
    assert scaling_of("research", tmp_path / "third") == scaling_of("research", tmp_path / "fourth")
