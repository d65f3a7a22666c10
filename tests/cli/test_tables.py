"""The table that a comparison ends with, and who learnt from whom."""

from pathlib import Path

import pytest
from rich.console import Console

from cli_calls import SMALL, call
from fedfomo.cli.tables import comparison_table
from fedfomo.core.model import Score
from fedfomo.core.round import CommunicationCost
from fedfomo.runs.records import RunRecord


def record(seed: int, accuracy: float) -> RunRecord:
    scores = {client: Score(0.5, accuracy, 10) for client in range(3)}
    return RunRecord(
        "local", {}, seed, scores, scores, CommunicationCost(), None, None, {}, 1, None, None, None, None, 0.0
    )


def shown(records: list[RunRecord]) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(comparison_table(records))
    return capture.get()


def test_the_spread_over_seeds_is_that_of_a_sample() -> None:
    # 80 and 90 are 5 away from their mean: √(50 / 1) = 7.1, where dividing by both seeds would give 5.
    assert "85.0 ± 7.1" in shown([record(0, 0.8), record(1, 0.9)])


def test_one_seed_has_no_spread() -> None:
    [row] = [line for line in shown([record(0, 0.8)]).splitlines() if "local" in line]
    assert "80.0" in row
    assert "±" not in row


def test_who_learnt_from_whom_is_drawn_for_the_first_method_that_says_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = ("--methods", "fedavg", "fedfomo-plus", "--seeds", "0")
    call("compare", *methods, *SMALL, "--rounds", "1", "--out", str(tmp_path / "runs"))
    printed = capsys.readouterr().out
    assert "Who learnt from whom (FedFomo+, seed 0)" in printed
    assert "FedFomo+ ends at" in printed
    assert "against fedavg" in printed
