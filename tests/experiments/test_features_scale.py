"""The features scale: what a cell leaves, how settings are chosen, and that stopped work goes on."""

from pathlib import Path

import pytest

from experiments.iclr2021.features.cells import (
    BREADTH,
    CONTENDERS,
    CORE,
    REGIMES,
    SEEDS,
    TUNING_REGIMES,
    TUNING_SEEDS,
    FeatureCell,
    Regime,
    queue,
)
from experiments.iclr2021.features.compute import compute, mean_of_last, tuning_cells
from experiments.iclr2021.features.store import TUNING, Choice, Store
from fedfomo.algorithms import make_algorithm
from fedfomo.errors import InputError
from made_up_sets import write_toys

TOYS = Regime("toys-iid", "made-up images, IID", {"scenario": "iid"}, dataset="toys")
LOCAL = CONTENDERS["local"]


def tried(store: Store, contender: str = "local", best: int = 0) -> None:
    """Note trials of all settings; validation likes one of them best."""
    for regime in TUNING_REGIMES:
        for seed in TUNING_SEEDS:
            for number, (rate, options) in enumerate(CONTENDERS[contender].grid):
                line = {"regime": regime.name, "method": contender, "seed": seed, "learning_rate": rate}
                value = 60.0 if number == best else 50.0
                store.append(TUNING, {**line, "options": options, "validation": value, "seconds": 1.0})


def test_a_cell_leaves_one_line(tmp_path: Path) -> None:
    folder = write_toys(tmp_path / "data")
    line = compute(FeatureCell(TOYS, CONTENDERS["fedfomo-all"], 0), Choice(0.1, {"num_downloads": 99}), folder)
    assert len(line["curve"]) == 11  # a reading after every other update, and one after the last round
    assert len(line["last"]) == len(line["last_five"]) == 15
    assert line["curve"][-1] == pytest.approx(sum(line["last"]) / 15, abs=1e-4)
    assert 0 < line["validation"] < 100
    again = compute(FeatureCell(TOYS, CONTENDERS["fedfomo-all"], 0), Choice(0.1, {"num_downloads": 99}), folder)
    assert again["last"] == line["last"]


def test_last_readings_are_averaged_client_by_client() -> None:
    readings = [{0: 0.0, 1: 0.0}, {0: 0.5, 1: 0.1}, {0: 0.7, 1: 0.3}]
    assert mean_of_last(readings, 2) == pytest.approx({0: 0.6, 1: 0.2})


def test_where_cohorts_change_there_is_no_mean_of_readings() -> None:
    assert mean_of_last([{0: 0.1}, {1: 0.2}], 2) is None
    assert mean_of_last([{0: 0.1}], 2) is None


def test_validation_chooses(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tried(store, best=2)
    assert store.choice(LOCAL) == Choice(LOCAL.grid[2][0], {})


def test_of_equals_the_first_is_chosen(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tried(store, "fedprox", best=99)
    assert store.choice(CONTENDERS["fedprox"]) == Choice(0.1, {"mu": 0.001})


def test_what_has_no_grid_takes_the_choice_of_its_kind(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tried(store, "fedfomo-5", best=1)
    chosen = Choice(0.1, {"epsilon": 1.0, "num_downloads": 10})
    assert store.choice(CONTENDERS["fedfomo-10"]) == chosen


def test_nothing_is_chosen_before_everything_is_tried(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `tune` first"):
        Store(tmp_path).choice(LOCAL)


def test_stopped_work_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tried(store)
    cell = FeatureCell(TOYS, LOCAL, 0)
    assert not store.has(cell)
    store.append(TOYS.name, {"method": "local", "seed": 0, "learning_rate": 0.03, "options": {}})
    with (tmp_path / "toys-iid.jsonl").open("a") as file:
        file.write('{"method":"local","se')  # as a kill leaves it
    anew = Store(tmp_path)
    assert anew.has(cell)
    assert not anew.has(FeatureCell(TOYS, LOCAL, 1))
    anew.append(TOYS.name, {"method": "local", "seed": 1, "learning_rate": 0.03, "options": {}})
    assert Store(tmp_path).has(FeatureCell(TOYS, LOCAL, 1))


def test_a_cell_of_other_settings_does_not_count(tmp_path: Path) -> None:
    store = Store(tmp_path)
    tried(store)
    store.append(TOYS.name, {"method": "local", "seed": 0, "learning_rate": 0.2, "options": {}})
    assert not store.has(FeatureCell(TOYS, LOCAL, 0))


def test_every_method_has_the_same_budget() -> None:
    tuned = [one for one in CONTENDERS.values() if one.tuned_as is None and one.given is None]
    assert {(len(one.grid), len(one.further)) for one in tuned} == {(3, 2)}
    for cell, choice in tuning_cells():
        make_algorithm(cell.contender.method, choice.options)  # every option exists, and is within its bounds
        assert cell.seed in TUNING_SEEDS


def test_per_fedavg_steps_by_no_more_than_an_eighth() -> None:
    one = CONTENDERS["per-fedavg"]
    assert all(options["alpha"] <= rate / 8 for rate, options in (*one.grid, *one.further))


def test_a_given_setting_needs_no_choice(tmp_path: Path) -> None:
    assert Store(tmp_path).choice(CONTENDERS["fedavg-finetuned-0.05"]) == Choice(0.05, {})
    given = [one for one in CONTENDERS.values() if one.given is not None]
    for one in given:  # settings that were tried, and are not in the first three
        tried = CONTENDERS[one.method]
        assert one.given in tried.further


def test_methods_that_use_the_targets_data_are_compared_with_foreign_targets_only() -> None:
    regimes = {regime for regime in REGIMES.values() if CONTENDERS["cfl-by-validation"].fits(regime)}
    assert regimes == {regime for regime in REGIMES.values() if regime.kind == "foreign"}
    assert len(regimes) == 4


def test_the_queue_has_every_cell_once_and_what_decides_most_first() -> None:
    cells = queue()
    assert len(set(cells)) == len(cells)
    assert {cell.seed for cell in cells} == set(range(SEEDS))
    assert not {cell.seed for cell in cells} & set(TUNING_SEEDS)
    assert len(cells) == sum(
        SEEDS for regime in REGIMES.values() for contender in CONTENDERS.values() if contender.fits(regime)
    )
    oracles = {cell.regime.name for cell in cells if cell.contender.name == "oracle"}
    assert "cifar10-dirichlet" not in oracles
    later = [cell.seed for cell in cells if cell.contender.name not in CORE]
    assert later[: later.index(BREADTH)] == [seed for seed in later if seed < BREADTH]
