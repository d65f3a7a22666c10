"""What pages say of the CNN, from results made by hand."""

from pathlib import Path

from experiments.iclr2021.cnn_page import full_protocol, page
from experiments.iclr2021.cnn_standings import cnn_standings
from experiments.iclr2021.paper_tables import FEDAVG, FINE_TUNED, FOMO_5, LOCAL, NEW_5, PLUS, TABLES
from experiments.iclr2021.queue import stages
from experiments.iclr2021.results import Results
from experiments.iclr2021.settings import Cell, MethodConfig
from fake_results import keep
from fedfomo.algorithms import make_algorithm
from fedfomo.runs.config_io import parse_options

COLUMN = next(column for column in TABLES["regimes"].columns if column.case == NEW_5)


def two_seeds(folder: Path, method: MethodConfig, *means: float) -> None:
    for seed, mean in enumerate(means):
        keep(folder, Cell(NEW_5, method, "lite", seed), [mean - 0.1, mean + 0.1])


def test_leads_are_paired_by_seed_and_the_oracle_is_no_rival(tmp_path: Path) -> None:
    two_seeds(tmp_path, FOMO_5, 0.60, 0.61, 0.62)
    two_seeds(tmp_path, PLUS, 0.70, 0.711, 0.719)
    two_seeds(tmp_path, LOCAL, 0.601, 0.61, 0.619)
    two_seeds(tmp_path, FEDAVG, 0.3)
    keep(
        tmp_path, Cell(NEW_5, next(row.variant for row in TABLES["regimes"].rows if row.name == "oracle"), "lite"), [1]
    )
    (one,) = cnn_standings(Results(tmp_path))
    assert (one.label, one.regime, one.clients, one.seeds()) == (COLUMN.heading, NEW_5.name, 15, 3)
    assert one.rivals == ["local", "fedavg"]
    assert list(one.leads("fedfomo-5")) == ["local"]  # FedAvg has one seed only
    assert one.verdicts("fedfomo-5") == {"local": "even"}
    assert one.verdicts("fedfomo-plus") == {"fedfomo-5": "ahead", "local": "ahead"}
    text = page(Results(tmp_path))
    assert "| Local Training | 3 | 61.00 ± 0.90 | +0.0 ± 0.2 | even | +10.0 ± 0.2 | ahead |" in text


def test_one_seed_is_not_compared(tmp_path: Path) -> None:
    two_seeds(tmp_path, FOMO_5, 0.6)
    two_seeds(tmp_path, LOCAL, 0.5)
    assert cnn_standings(Results(tmp_path)) == []
    assert "Nothing has been computed yet." in page(Results(tmp_path))


def test_all_data_stand_beside_a_fifth_of_them(tmp_path: Path) -> None:
    for scale, (fomo, tuned) in {"lite": (0.65, 0.64), "paper": (0.7, 0.72)}.items():
        keep(tmp_path, Cell(NEW_5, FOMO_5, scale), [fomo])
        keep(tmp_path, Cell(NEW_5, FINE_TUNED, scale), [tuned])
    keep(tmp_path, Cell(NEW_5, LOCAL, "paper"), [0.6])
    assert full_protocol(Results(tmp_path)).splitlines() == [
        f"| method | {COLUMN.heading}: a fifth | {COLUMN.heading}: all |",
        "| --- | ---: | ---: |",
        "| Local Training | – | 60.0 (+10.0) |",
        "| FedAvg + fine-tuning | 64.0 (+1.0) | 72.0 (−2.0) |",
        "| FedFomo (n = 5) | 65.0 | 70.0 |",
    ]


def test_the_oracle_is_left_out_where_there_are_no_groups_and_the_first_stage_has_three_seeds() -> None:
    without = {column.case.name for column in TABLES["regimes"].columns if not column.case.has_groups}
    cells = TABLES["regimes"].target.cells("lite")
    assert without == {"cifar10-dirichlet-k15", "cifar10-pathological-k15", "cifar10-iid-k15"}
    assert not [cell for cell in cells if cell.variant.method == "oracle" and cell.case.name in without]
    first = stages()[0].cells
    assert len(first) == 3 * (3 * 6 + 2 * 5)
    assert {cell.seed for cell in first} == {0, 1, 2}


def test_every_method_of_the_table_has_the_options_that_it_is_given() -> None:
    for row in TABLES["regimes"].rows:
        make_algorithm(row.variant.method, parse_options(row.variant.options_on(NEW_5)))
