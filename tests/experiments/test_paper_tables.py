"""What is planned: every number of the paper has a cell, no cell is planned twice, and each is a possible run."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.iclr2021.paper_tables import (
    AS_CODED,
    DIRICHLET,
    FIGURES,
    FOMO_5,
    LATENT_5,
    LOCAL,
    MANY_CLIENT_SETTINGS,
    MOCHA_REPOSITORY,
    NEW_5,
    OOD_5,
    PAPER_METHODS,
    TABLES,
    find_target,
    splitting,
)
from experiments.iclr2021.queue import stages
from experiments.iclr2021.settings import SCALES, Cell, Setting, published
from fedfomo.algorithms import make_algorithm
from fedfomo.cli.terminal import parse_run
from fedfomo.errors import InputError

PAPERS_TABLES = [name for name in TABLES if name.startswith("table") and "-" not in name]


@pytest.mark.parametrize("name", PAPERS_TABLES)
def test_every_cell_of_a_table_has_the_papers_number(name: str) -> None:
    table = TABLES[name]
    for column in table.columns:
        for row in table.rows:
            number = published(name, row.name, column.case)
            assert (number is not None) == (row.is_papers or row.variant is MOCHA_REPOSITORY)
            if number is not None:
                assert 0 < number.mean < 100


def test_some_numbers_of_the_paper() -> None:
    cases = {case.name: case for case, _ in TABLES["table1"].target.pairs}
    found = published("table1", "fedfomo-10", cases["cifar10-pathological-k100"])
    assert found is not None
    assert (found.text, found.mean) == ("92.67 ± 4.21", 92.67)
    budget = published("table4", "fedfomo-5-noise-2", LATENT_5, "epsilon")
    assert budget is not None
    assert budget.text == "1.70 ± 0.04"
    assert published("table4", "fedfomo-5-noise-0", LATENT_5, "epsilon") is None
    assert published("authors", "fedfomo-5", LATENT_5) is None


def test_the_tables_have_the_papers_shape() -> None:
    shapes = {name: len(TABLES[name].target.cells("paper")) for name in PAPERS_TABLES}
    assert shapes == {"table1": 44, "table2": 55, "table3": 22, "table4": 12, "table5": 55, "table6": 18}
    assert len(TABLES["authors"].target.cells("lite")) == 12
    assert len(TABLES["everyone"].target.cells("paper")) == 4
    assert len(TABLES["augmentation"].target.cells("lite")) == 6


def test_cells_in_float32_are_those_of_other_tables_and_cells_in_bfloat16_their_own() -> None:
    others = {cell.name for name in ("regimes", "table2-imagenet") for cell in TABLES[name].target.cells("lite")}
    cells = TABLES["precision"].target.cells("lite")
    alone = [cell for cell in cells if cell.name not in others]
    assert (len(cells), len(alone)) == (6, 3)
    assert {cell.config().setting.precision for cell in alone} == {"bf16"}
    assert all("--precision bf16" in cell.command() for cell in alone)


def test_no_cell_is_queued_twice_and_every_table_is_queued() -> None:
    queued = [cell for stage in stages() for cell in stage.cells]
    names = {cell.name for cell in queued}
    assert len(names) == len(queued)
    for target in [*(table.whole for table in TABLES.values()), *FIGURES.values()]:
        for scale in ("lite", "paper"):
            missing = [cell for cell in target.cells(scale, range(target.runs)) if cell.name not in names]
            # A fifth of the data of one of 100 clients is too little.
            assert all(scale == "lite" and cell.case.clients == 100 for cell in missing)


def test_older_groups_keep_their_names_and_say_what_they_are() -> None:
    assert LATENT_5.at("lite")["representation"] == "vgg"
    assert "representation" not in NEW_5.at("lite")
    assert (LATENT_5.name, NEW_5.name) == ("cifar10-latent-d5-k15", "cifar10-latent-d5-k15-imagenet")
    assert published("table2-imagenet", "local", NEW_5) == published("table2", "local", LATENT_5)
    assert Cell(DIRICHLET, LOCAL, "lite").config().setting.scenario.alpha == 0.1


def test_what_decides_comes_first_and_then_the_full_protocol_with_five_distributions() -> None:
    deciding, full, newer, first, second, *_ = stages()
    assert [len(deciding.cells), len(full.cells), len(newer.cells)] == [84, 14, 219]
    assert {cell.scale for stage in (deciding, newer) for cell in stage.cells} == {"lite"}
    assert first.cells[0] == Cell(LATENT_5, FOMO_5, "paper")
    assert [len(first.cells), len(second.cells)] == [16, 8]
    assert {cell.case.name for cell in first.cells} == {"cifar10-latent-d5-k15", "cifar10-ood-d5-k15"}


def test_seeds_repeat_three_runs_and_five_shuffles() -> None:
    (repeats, _) = [stage for stage in stages() if stage.title.startswith("more seeds")]
    seeds = {
        case.name: {cell.seed for cell in repeats.cells if cell.case == case}
        for case in (Setting("cifar10", "latent", 4), OOD_5, MANY_CLIENT_SETTINGS["MNIST"], splitting(0.01))
    }
    assert list(seeds.values()) == [{1, 2}, {1, 2, 3, 4}, {1, 2}, {1, 2, 3, 4}]


@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_is_a_possible_run(scale: str) -> None:
    for target in [*(table.target for table in TABLES.values()), *FIGURES.values()]:
        for cell in target.cells(scale):
            make_algorithm(cell.variant.method, cell.config().options)
            assert "--seed 0" in cell.command()
            config = cell.config()
            assert config.setting.scenario.data_fraction == (0.2 if scale == "lite" else 1.0)
            assert config.setting.privacy.noise == cell.case.noise


@pytest.mark.parametrize("name", [*TABLES, *FIGURES])
def test_a_command_means_the_same_run(name: str) -> None:
    for cell in find_target(name).cells("lite", (3,))[-1:]:
        said, meant = parse_run(shlex.split(cell.command())[2:]), cell.config(Path("FOLDER"))
        algorithms = [make_algorithm(config.method, config.options) for config in (said, meant)]
        assert algorithms[0] == algorithms[1]
        assert replace(said, options=meant.options) == meant


def test_the_authors_code_has_as_many_averages_as_there_are_distributions() -> None:
    coded = {
        cell.case.distributions: cell for cell in TABLES["authors"].target.cells("lite") if cell.variant is AS_CODED
    }
    assert list(coded) == [2, 5]
    for number, cell in coded.items():
        assert f"--fedfomo-as-coded.num-averages {number} " in cell.command()


def test_a_command_names_what_may_become_another_default() -> None:
    command = Cell(Setting("cifar10", "latent", 5, noise=1.0), FOMO_5, "paper").command()
    for flags in ("--augment", "--distributions 5", "--validation-fraction 0.2", "--privacy.delta 1e-05", "--epochs 5"):
        assert flags in command


def test_the_papers_protocol() -> None:
    few, many = (
        Cell(Setting("mnist", "pathological", clients=clients), PAPER_METHODS[0], "paper") for clients in (15, 100)
    )
    assert (few.config().setting.rounds, few.config().setting.participation) == (20, 1.0)
    assert (many.config().setting.rounds, many.config().setting.participation) == (100, 0.1)
    assert few.config().setting.training.learning_rate == 0.01
    assert few.config().setting.training.epochs == 5
    assert few.config().setting.training.batch_size == 50


def test_names_that_nothing_answers_to_are_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'table2'"):
        find_target("tabel2")
    with pytest.raises(InputError, match="unknown scale"):
        LATENT_5.at("huge")
