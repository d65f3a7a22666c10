"""Clients that drop out or are late: drawn reproducibly, told in the log, and never heard of afterwards."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli_calls import SMALL, call
from fedfomo.algorithms import make_algorithm
from fedfomo.engine.run_dir import RunDirectory
from fedfomo.privacy.config import Privacy
from fedfomo.simulation.callbacks import Callback, FinishedRound
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.simulate import simulate
from fedfomo.simulation.transport import Failures, draw_failures
from fedfomo.testing.toy_federation import digest_of
from toy_problems import KeepLines, points_problem

FAILING = SimulationConfig(rounds=6, client_dropout=0.3, late_fraction=0.2)


def _lines(plan: SimulationConfig, method: str = "fedfomo", **changes: Any) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    problem = replace(points_problem(), **changes)
    simulate(problem, make_algorithm(method), plan, callback=KeepLines(lines))
    return lines


def test_fates_are_drawn_by_themselves_and_a_larger_chance_takes_the_same_clients_and_more() -> None:
    everybody = range(1000)
    few, many = (draw_failures(everybody, 1000, chance, 0.0, 0, 3).dropped for chance in (0.1, 0.3))
    assert set(few) < set(many)
    assert (len(few), len(many)) == (pytest.approx(100, abs=30), pytest.approx(300, abs=45))
    both = draw_failures(everybody, 1000, 0.1, 0.2, 0, 3)
    assert both.dropped == few
    assert sorted(both.dropped + both.late) == many
    some = draw_failures([5, 7, 400], 1000, 0.3, 0.0, 0, 3)
    assert some.dropped == [client for client in (5, 7, 400) if client in many]
    assert draw_failures(everybody, 1000, 0.3, 0.0, 0, 4).dropped != many
    assert draw_failures(everybody, 1000, 0.0, 0.0, 0, 3) == Failures()


def test_the_log_says_who_failed_and_holds_nothing_of_them() -> None:
    lines = _lines(FAILING)
    assert any(line["dropped"] for line in lines)
    assert any(line["late"] for line in lines)
    for line in lines:
        heard = set(line["cohort"]) - set(line["dropped"]) - set(line["late"])
        assert set(map(int, line["uploads"])) == heard
        # Who is late has worked: only those who dropped out have no scores.
        assert set(map(int, line["after_training"])) == set(line["cohort"]) - set(line["dropped"])


def test_where_nobody_fails_the_log_has_no_word_for_it() -> None:
    assert not {"dropped", "late"} & set(_lines(SimulationConfig(rounds=1))[0])


def test_a_round_that_everybody_fails_closes() -> None:
    lines = _lines(SimulationConfig(rounds=8, client_dropout=0.9))
    assert len(lines) == 8
    assert any(not line["uploads"] for line in lines)


def test_every_clients_last_training_is_scored_though_it_may_miss_the_last_rounds() -> None:
    plan = replace(FAILING, evaluate_every=100)
    result = simulate(points_problem(), make_algorithm("fedfomo"), plan)
    assert sorted(result.after_training) == list(range(6))


def test_who_is_late_has_paid_and_who_dropped_out_has_not() -> None:
    private = Privacy(noise=1.0, delta=1e-3)
    lines = _lines(replace(FAILING, rounds=4), "fedavg", privacy=private)
    spent = dict.fromkeys(map(str, range(6)), 0.0)
    for line in lines:
        for client, epsilon in line["epsilon"].items():
            has_paid = (epsilon["training"] or 0.0) > spent[client]
            assert has_paid == (int(client) not in line["dropped"])
            spent[client] = epsilon["training"]


class _Interrupt(Callback):
    def round_done(self, finished: FinishedRound) -> None:
        if finished.round == 2:
            raise KeyboardInterrupt


def test_a_run_that_is_interrupted_goes_on_with_the_same_failures(tmp_path: Path) -> None:
    problem, algorithm = points_problem(), make_algorithm("fedfomo")
    digests: list[str] = []
    for name, callbacks in (("alone", [None]), ("interrupted", [_Interrupt(), None])):
        (tmp_path / name).mkdir()
        for callback in callbacks:
            home = RunDirectory(tmp_path / name, "same", print)
            try:
                digests.append(digest_of(simulate(problem, algorithm, FAILING, home, callback)))
            except KeyboardInterrupt:
                continue
            finally:
                home.close()
    assert len(digests) == 2
    assert digests[0] == digests[1]
    assert (tmp_path / "alone/rounds.jsonl").read_bytes() == (tmp_path / "interrupted/rounds.jsonl").read_bytes()


def test_the_command_line_knows_both(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    call("run", "--out", str(folder), *SMALL, "--client-dropout", "0.4", "--late-fraction", "0.3")
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert len(lines) == 4
    assert sum(len(line["dropped"]) + len(line["late"]) for line in lines) > 4
    assert "dropout = 0.4" in (folder / "config.toml").read_text()
