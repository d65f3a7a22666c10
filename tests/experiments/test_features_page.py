"""What pages say of the features scale, from lines made by hand."""

from pathlib import Path

import pytest

from experiments.iclr2021.features.cells import CONTENDERS, TUNING_REGIMES, TUNING_SEEDS
from experiments.iclr2021.features.page import draw, front, headline, page, progress
from experiments.iclr2021.features.standings import standings
from experiments.iclr2021.features.store import TUNING, Store
from experiments.markdown import NOTHING

REGIME = "cifar10-latent-d5"
METHODS = ("fedfomo-5", "fedfomo-plus", "local", "fedavg")


def cells(store: Store, accuracies: dict[str, list[float]], regime: str = REGIME, with_five: bool = True) -> None:
    """Keep cells of two clients with these means in %, one for each seed, with the settings that come first."""
    for name in accuracies:
        for tuning in TUNING_REGIMES:
            for seed in TUNING_SEEDS:
                for rate, options in (*CONTENDERS[name].grid, *CONTENDERS[name].further):
                    line = {"method": name, "seed": seed, "learning_rate": rate, "options": dict(options)}
                    store.append(TUNING, {"regime": tuning.name, **line, "validation": 50.0, "seconds": 1.0})
    for name, values in accuracies.items():
        rate, options = CONTENDERS[name].grid[0]
        for seed, value in enumerate(values):
            settings = {"learning_rate": rate, "options": {**options, **CONTENDERS[name].fixed}}
            clients = [value / 100 - 0.1, value / 100 + 0.1]
            line = {"method": name, "seed": seed, **settings, "last": [0.5, 0.5], "informative": 2}
            store.append(regime, {**line, "last_five": clients if with_five else None})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    cells(
        store,
        {
            "fedfomo-5": [60.0, 61.0, 62.0],
            "fedfomo-plus": [63.0, 64.1, 64.9],
            "local": [60.1, 61.0, 61.9],
            "fedavg": [50.0, 51.1, 51.9],
        },
    )
    return store


def test_leads_are_paired_and_sorted_out(store: Store) -> None:
    (one,) = standings(store)
    assert one.mean("fedfomo-5") == pytest.approx(61.0)
    assert one.leads("fedfomo-5")["fedavg"].values == pytest.approx((10.0, 9.9, 10.1))
    assert one.verdicts("fedfomo-5") == {"local": "even", "fedavg": "ahead"}
    assert one.outcome("fedfomo-5") == "even"
    assert one.verdicts("fedfomo-plus") == {"fedfomo-5": "ahead", "local": "ahead", "fedavg": "ahead"}
    assert one.outcome("fedfomo-plus") == "win"
    assert one.rivals == ["local", "fedavg"]


def test_the_first_table(store: Store) -> None:
    row = next(line for line in headline(store).splitlines() if "D = 5" in line)
    assert row == (
        "| CIFAR-10, latent distributions, D = 5 | 2 of 15 | 3 | 61.0 | Local Training 61.0 | +0.0 ± 0.2 |"
        " **even**: 1 ahead, 1 even | 64.0 | +3.0 ± 0.2 | **wins**: 3 ahead |"
    )
    words = " ".join(headline(store).split())
    assert "Over all 1 regimes: FedFomo, with up to 2 rivals in each, is even in 1; FedFomo+, with up to 3" in words


def test_the_short_table(store: Store) -> None:
    assert front(store).splitlines()[2] == (
        "| CIFAR-10, latent distributions, D = 5 | 3 | 61.0 | Local Training 61.0 | +0.0 ± 0.2, **even** |"
        " 64.0 | +3.0 ± 0.2, **wins** |"
    )


def test_one_seed_is_not_shown(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cells(store, {"fedfomo-5": [60.0], "local": [50.0]})
    assert headline(store) == NOTHING
    assert not draw(store, tmp_path / "features.svg")
    assert "2 of " in progress(store)


def test_where_cohorts_change_the_last_reading_counts(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cells(store, {"fedfomo-5": [60.0, 70.0], "local": [50.0, 55.0]}, "cifar10-pathological-k100", with_five=False)
    (one,) = standings(store)
    assert one.mean("fedfomo-5") == pytest.approx(50.0)


def test_the_page_has_scores_leads_and_settings(store: Store, tmp_path: Path) -> None:
    text = page(store)
    assert "| FedAvg | 3 | 51.00 ± 0.95 | 50.00 ± 0.00 | +10.0 ± 0.2 | ahead | +13.0 ± 0.0 | ahead |" in text
    assert "**rate 0.03: 50.00**; rate 0.1: 50.00" in text
    assert draw(store, tmp_path / "features.svg")
    assert "FedAvg" in (tmp_path / "features.svg").read_text()


def test_a_rival_that_is_ahead_by_less_than_a_point_is_counted(tmp_path: Path) -> None:
    store = Store(tmp_path)
    plus, local = [60.0, 61.0, 62.0, 63.0], [60.5, 61.5, 62.5, 63.6]  # behind by 0.5, 0.5, 0.5, 0.6
    cells(store, {"fedfomo-5": [50.0, 51.0, 52.0, 53.1], "fedfomo-plus": plus, "local": local})
    (one,) = standings(store)
    assert one.outcome("fedfomo-plus") == "even"
    assert list(one.close_behind("fedfomo-plus")) == ["local"]
    assert one.close_behind("fedfomo-5") == {}  # behind by ten points: more than the margin
    words = " ".join(headline(store).split())
    assert "In 1 of 1 regimes at least one rival is ahead of FedFomo+ by less than a point (at most 0.5)" in words
    assert "By the last reading alone, FedFomo+ is even in 1." in words  # all last readings are equal
