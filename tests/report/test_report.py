"""From run folders to facts: every number of the page comes from the run, and nothing from anywhere else."""

import hashlib
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli_calls import SMALL, call, refused
from fedfomo.algorithms.fedavg import FedAvg
from fedfomo.cli.terminal import parse_comparison
from fedfomo.core.algorithm import EvaluatedModels
from fedfomo.core.data import ClientData, Examples
from fedfomo.core.model import Score
from fedfomo.datasets.latent_groups import LatentGroups, save_groups, user_file
from fedfomo.datasets.readers import load_data
from fedfomo.errors import InputError
from fedfomo.report.build import build_report_data
from fedfomo.report.data import ClientFacts, Evaluation, FinalResult, MethodFacts, ReportData, ReportInput, Reproduce
from fedfomo.report.from_run import load, prepare_run
from fedfomo.report.intervals import Estimate, of_difference
from fedfomo.report.ordering import order_by_likeness, order_rows
from fedfomo.report.page import SCRIPTS, render
from fedfomo.report.per_example import PerExampleScores, read_scores, right_by_class, write_scores
from fedfomo.report.select_run import find_run
from fedfomo.report.text import Unit, headline, lede, next_step, site_sentence
from fedfomo.runs.config import CompareConfig, ExperimentConfig, RunConfig
from fedfomo.runs.config_io import build, read_toml, write_toml
from fedfomo.runs.records import read_record
from fedfomo.runs.run import read_config, runs_of
from fedfomo.simulation.problem import FederatedProblem


@pytest.fixture(scope="module")
def facts(comparison: Path) -> ReportData:
    folder = find_run(comparison)
    return build_report_data(load(folder, data=prepare_run(folder)))


def test_which_run_of_a_comparison_is_meant_is_said_and_never_guessed(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_run(comparison, seed=1) == comparison / "fedfomo-seed-1"
    assert find_run(comparison / "local-seed-1") == comparison / "local-seed-1"
    assert "unknown method 'fedprox'" in refused(capsys, "report", str(comparison), "--method", "fedprox")
    assert "choose with --seed one of 0, 1" in refused(capsys, "report", str(comparison), "--seed", "2")
    others = tmp_path / "others"
    shutil.copytree(comparison, others)
    config = read_toml(others / "config.toml", CompareConfig)
    (others / "config.toml").write_text(write_toml(replace(config, methods=("fedavg",))))
    out = tmp_path / "model.safetensors"
    for command in (["report", str(others)], ["export", str(others), "--site", "0", "--out", str(out)]):
        said = refused(capsys, *command)
        assert f"{others} has no run of fedfomo: choose with --method one of local, fedavg" in said
        call(*command, "--method", "fedavg", "--seed", "1")
        assert "of this comparison: fedavg with seed 1" in capsys.readouterr().out


def own(facts: ReportData) -> list[MethodFacts]:
    """Return how the method that a report is about has ended, if it has."""
    return [method for method in facts.methods if method.method == facts.method]


def test_a_comparisons_report_is_about_fedfomo_beside_local_and_fedavg(facts: ReportData) -> None:
    assert [method.method for method in facts.methods] == ["local", "fedavg", "fedfomo"]
    assert facts.method == "fedfomo"
    assert facts.is_finished
    (fedfomo,) = own(facts)
    assert fedfomo.helped + fedfomo.harmed + fedfomo.undecided == 6
    assert facts.seeds == [0, 1]
    local, *_ = facts.methods
    assert fedfomo.mean_gain is not None
    assert fedfomo.mean - local.mean == pytest.approx(fedfomo.mean_gain.value)  # of one set of seeds
    assert facts.advice == ""


def test_scores_are_those_of_the_run_and_gains_their_differences(facts: ReportData, comparison: Path) -> None:
    kept = json.loads((comparison / "fedfomo-seed-0" / "result.json").read_text())["after_update"]
    alone = json.loads((comparison / "local-seed-0" / "result.json").read_text())["after_update"]
    (fedfomo,) = own(facts)
    for client in range(6):
        score, gain = fedfomo.scores[client], fedfomo.gains[client]
        assert score is not None
        assert gain is not None
        assert score.value == pytest.approx(kept[str(client)]["metric"])
        assert gain.value == pytest.approx(kept[str(client)]["metric"] - alone[str(client)]["metric"])
        assert score.low <= score.value <= score.high


def test_who_uploaded_nothing_new_is_named(comparison: Path) -> None:
    source = load(find_run(comparison))
    odd = [{**line, "suspected": {"3": "its own last model again"}} for line in source.lines]
    for lines, is_named in ((odd, True), (source.lines, False)):
        notes = build_report_data(replace(source, lines=lines)).health.notes
        assert any(f"{source.clients[3].name} ({len(odd)})" in note for note in notes) is is_named


def test_who_moved_to_averages_alone_did_not_stay_where_it_was(comparison: Path) -> None:
    source = load(find_run(comparison))
    judged = {"findings.ids": [0, 1], "findings.increments": [-1.0, -2.0], "findings.shares": [0.0, 0.0]}
    uploads = [judged, *({**judged, "findings.share_of_averages": share} for share in (0.0, 1.0))]
    for upload, fell_back in zip(uploads, (3, 3, 0), strict=True):
        lines = [{**line, "uploads": {"0": upload}} for line in source.lines]
        assert (
            build_report_data(replace(source, lines=lines)).health.fell_back[0] == fell_back
        )  # round 0 does not count


def test_the_log_says_how_much_of_averages_was_mixed_in(tmp_path: Path) -> None:
    call(
        "run",
        "--method",
        "fedfomo-as-coded",
        "--fedfomo-as-coded.num-averages",
        "2",
        "--out",
        str(tmp_path / "run"),
        *SMALL,
        "--rounds",
        "3",
    )
    last = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[-1])
    of_averages = [upload["findings.share_of_averages"] for upload in last["uploads"].values()]
    of_clients = [sum(upload["findings.shares"]) for upload in last["uploads"].values()]
    assert len(of_averages) == 6
    assert any(of_averages)
    for one, other in zip(of_averages, of_clients, strict=True):
        assert one + other in (0.0, pytest.approx(1.0))


def test_adding_up_the_judgements_gives_the_affinity(facts: ReportData) -> None:
    assert facts.affinity is not None
    total = [[float(r == g) for g in range(6)] for r in range(6)]
    for played in facts.rounds:
        for judgement in played.judgements:
            for giver, utility in zip(judgement.givers, judgement.utilities, strict=True):
                total[judgement.receiver][giver] += utility
    for row, expected in zip(total, facts.affinity, strict=True):
        assert row == pytest.approx(expected)


def test_the_diagonal_of_the_cross_matrix_is_everybodys_own_score(facts: ReportData) -> None:
    assert facts.cross is not None
    (fedfomo,) = own(facts)
    for client, score in enumerate(fedfomo.scores):
        assert score is not None
        assert facts.cross[client][client] == pytest.approx(score.value)


def test_curves_hold_what_the_log_holds(facts: ReportData, comparison: Path) -> None:
    lines = [json.loads(line) for line in (comparison / "fedfomo-seed-0" / "rounds.jsonl").read_text().splitlines()]
    assert facts.curves.test_updated[2][3] == lines[2]["after_update"]["3"]["metric"]
    assert facts.curves.validation_reference[3][1] == lines[3]["judged"]["1"][0]
    assert facts.curves.validation_own[3][1] == lines[3]["judged"]["1"][1]
    # Its own trained model and five others: that is all a client judges beside its reference.
    assert {len(losses) for losses in lines[3]["judged"].values()} == {1 + 1 + 5}
    assert [played.round for played in facts.rounds] == [1, 2, 3, 4]
    assert [played.epsilon for played in facts.rounds] == pytest.approx([0.3, 0.25, 0.2, 0.15])
    assert facts.rounds[0].new_pairs == 0  # nobody has uploaded yet
    assert facts.rounds[-1].pairs_met == 1.0
    assert all(played.training_seconds is not None for played in facts.rounds)


def test_losses_have_curves_where_the_method_says_whose_they_are(tmp_path: Path) -> None:
    run = tmp_path / "averages"
    call("run", "--method", "fedfomo-averages", "--out", str(run), *SMALL, "--rounds", "2")
    last = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    assert "findings.ids" in last["uploads"]["0"]
    assert len(last["judged"]["0"]) == 1 + 6  # an average, and the same without each of its members in turn
    curves = build_report_data(load(run)).curves
    assert (curves.validation_reference, curves.validation_own) == ([], [])
    assert len(curves.test_updated) == 2


def test_the_log_is_the_same_every_time_and_times_are_elsewhere(comparison: Path, tmp_path: Path) -> None:
    call("run", "--method", "fedfomo", "--out", str(tmp_path / "again"), *SMALL)
    first = (comparison / "fedfomo-seed-0" / "rounds.jsonl").read_bytes()
    assert (tmp_path / "again" / "rounds.jsonl").read_bytes() == first
    assert b"seconds" not in first
    assert len((tmp_path / "again" / "seconds.jsonl").read_text().splitlines()) == 4


def test_the_reproduce_box_gives_the_same_log(facts: ReportData, comparison: Path) -> None:
    command = facts.reproduce.command.splitlines()[0]
    assert command.startswith("fedfomo run --method fedfomo --seed 0 --dataset digits")
    assert "--clients 6" in command
    log = (comparison / "fedfomo-seed-0" / "rounds.jsonl").read_bytes()
    assert facts.reproduce.hashes["rounds.jsonl"] == hashlib.sha256(log).hexdigest()


def test_a_lone_run_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call("run", "--out", str(tmp_path / "alone"), *SMALL, "--rounds", "1")
    call("report", str(tmp_path / "alone"))
    assert "fedfomo compare --methods local fedavg fedfomo --seeds 0" in capsys.readouterr().out
    assert (tmp_path / "alone" / "report.html").stat().st_size < 6_000_000
    local = tmp_path / "local"
    call("run", "--method", "local", "--out", str(local), *SMALL, "--rounds", "1")
    call("report", str(tmp_path / "alone"), "--beside", str(local))
    assert " instead of " in capsys.readouterr().out


def test_the_command_that_a_lone_run_advises_is_of_its_own_data_set_and_options(
    comparison: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(comparison / "fedfomo-seed-1", run)
    played = read_config(run)
    setting = build(ExperimentConfig, {"dataset": "mnist", "data": "images", "epochs": 2})
    options = {"num_downloads": 2, "epsilon": 0.1}
    (run / "config.toml").write_text(write_toml(replace(played, options=options, setting=setting)))
    advised = shlex.split(load(run).advice.partition("fedfomo compare ")[2])
    read = parse_comparison(advised)
    assert read.setting == setting
    assert read.methods == ("local", "fedavg", "fedfomo")
    assert [run for run in runs_of(read) if run.method == "fedfomo"] == [
        RunConfig("fedfomo", options, played.seed, None, setting)
    ]


def test_runs_side_by_side_have_one_setting_and_none_is_dropped(comparison: Path, tmp_path: Path) -> None:
    about = comparison / "fedfomo-seed-0"
    setting = (*SMALL, "--rounds", "4")
    few, longer = tmp_path / "few", tmp_path / "longer"
    call("run", "--fedfomo.num-downloads", "2", "--out", str(few), *setting)
    call("run", "--method", "local", "--out", str(longer), *SMALL, "--rounds", "5")
    assert set(load(about, [few]).ended) == {"local", "fedavg", "fedfomo", "fedfomo (num_downloads=2)"}
    assert set(load(few, [about]).ended) == {"fedfomo", "fedfomo (default options)"}
    best, local = tmp_path / "best", comparison / "local-seed-0"
    call("run", "--method", "local", "--local.keep-best", "--out", str(best), *setting)
    ended = load(few, [best, local]).ended  # whatever the order, the plain name is that of the plain method
    assert set(ended) == {"fedfomo", "local", "local (keep_best=True)"}
    assert ended["local"].scores == read_record(local).after_update
    with pytest.raises(InputError, match=r"another setting than .*: rounds \(4, there 5\)"):
        load(about, [longer])
    with pytest.raises(InputError, match="has the method and options of"):
        load(about, [few, few])


@pytest.mark.parametrize(
    ("flags", "is_low"), [((), False), (("--participation", "0.5"), True), (("--client-dropout", "0.2"), True)]
)
def test_local_that_trains_only_when_drawn_is_called_too_low_a_bar(
    tmp_path: Path, flags: tuple[str, ...], is_low: bool
) -> None:
    for method in ("local", "fedavg"):
        call("run", "--method", method, "--out", str(tmp_path / method), *SMALL, "--rounds", "2", *flags)
    alone, beside = load(tmp_path / "fedavg"), load(tmp_path / "fedavg", [tmp_path / "local"])
    assert any("gains over Local are too large" in note for note in beside.notes) is is_low
    assert not any("Local" in note for note in alone.notes)


def test_a_run_that_still_goes_on_has_a_report(comparison: Path, tmp_path: Path) -> None:
    running = tmp_path / "fedfomo-running"
    shutil.copytree(comparison / "fedfomo-seed-0", running)
    (running / "result.json").unlink()
    log = running / "rounds.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2]) + lines[2][:50])  # the third is being written
    found = build_report_data(load(running))
    assert not found.is_finished
    assert len(found.rounds) == 2
    assert own(found) == []
    json.loads(found.to_json())


def test_watching_rewrites_the_report_until_the_run_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-m", "fedfomo", "run", "--out", str(run), *SMALL, "--epochs", "60", "--rounds", "12"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while not (run / "config.toml").exists():
        assert process.poll() is None
        time.sleep(0.02)
    call("report", str(run), "--watch")
    assert process.wait() == 0
    printed = capsys.readouterr().out
    assert len(re.findall(r"round \d+ of 12", printed)) >= 2
    page = (run / "report.html").read_text()
    assert '"is_finished":true' in page


def test_watching_a_comparison_waits_for_the_run_that_is_meant(
    comparison: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, aside = tmp_path / "comparison", tmp_path / "aside"
    shutil.copytree(comparison, folder)
    (folder / "fedfomo-seed-0").rename(aside)
    said = refused(capsys, "report", str(folder))
    assert (
        "fedfomo-seed-0 has not begun yet: try again, or give --watch; begun are fedavg-seed-0, fedavg-seed-1" in said
    )
    begins = threading.Timer(1.5, lambda: aside.rename(folder / "fedfomo-seed-0"))
    begins.start()
    call("report", str(folder), "--watch")
    begins.join()
    printed = capsys.readouterr().out
    assert "of this comparison: fedfomo with seed 0" in printed
    assert "fedfomo-seed-0 to begin" in printed
    assert '"method":"fedfomo"' in (folder / "report.html").read_text()


def source_of(ours: list[float], theirs: list[float]) -> ReportInput:
    def ended(figures: list[float]) -> FinalResult:
        mean = sum(figures) / len(figures)
        return FinalResult({0: Score(0.5, mean, len(figures))}, 0, 1, PerExampleScores([figures], None, "too long"))

    return ReportInput(
        title="a test",
        method="fedfomo",
        algorithm=None,
        seed=0,
        rounds_planned=1,
        clients=[ClientFacts("</script><b>leeds", 4, 4, len(ours))],
        lines=[],
        seconds={},
        ended={"local": ended(theirs), "fedfomo": ended(ours)},
        affinity=None,
        mixing=None,
        own_targets=True,
        reproduce=Reproduce("", "", {}, {}),
    )


def test_who_is_clearly_better_is_helped_and_who_may_be_is_not() -> None:
    clear = build_report_data(source_of([1.0] * 30, [1.0] * 15 + [0.0] * 15))
    doubtful = build_report_data(source_of([1.0] * 4, [1.0] * 3 + [0.0]))
    harmed = build_report_data(source_of([0.0] * 30, [1.0] * 30))
    for found, expected in ((clear, (1, 0, 0)), (doubtful, (0, 1, 0)), (harmed, (0, 0, 1))):
        (ours,) = own(found)
        assert (ours.helped, ours.undecided, ours.harmed) == expected


def test_other_metrics_are_shown_as_they_are() -> None:
    found = build_report_data(source_of([-1.5, -2.5, -0.5], [-3.0, -4.0, -1.0]))
    assert not found.is_share
    assert "accuracy −1.5 instead of −2.67 (+1.2, between" in found.sentences[0]


def test_a_name_cannot_end_the_script_it_is_in() -> None:
    facts = build_report_data(source_of([1.0], [1.0]))
    page = render("</title><script>alert(1)</script>", facts.to_json(), SCRIPTS)
    assert page.count("</script>") == 3
    assert "alert(1)</script>" not in page.split("<style>")[0].replace("&lt;script>alert(1)&lt;/script>", "")
    assert page.count("http-equiv") == 1
    assert " src=" not in page.split("<script>")[0]


def test_sentences() -> None:
    helpers = {"Turin": 0.61, "Lyon": 0.385, "Porto": 0.005}
    paid = site_sentence("Leeds", est(0.72), est(0.92), Estimate(0.2, 0.033, 0.355), helpers, Unit(), 25)
    told = "Leeds: 23 of 25 right instead of 18 (+20.0 points, between +3.3 and +35.5)."
    assert paid == f"{told} It learned from Turin (61 %) and Lyon (38 %)."
    not_paid = site_sentence("Turin", est(0.9), est(0.88), Estimate(-0.02, -0.03, -0.01), {}, Unit(), 50)
    assert not_paid == "Turin: 44 of 50 right instead of 45 (−2.0 points, between −3.0 and −1.0)."
    even = site_sentence("Lyon", est(0.9), est(0.9), Estimate(0.0, -0.04, 0.04), {"Turin": 1.0}, Unit(), 50)
    assert even.startswith("Lyon: 45 of 50 right, as alone (+0.0 points, between −4.0 and +4.0: undecided). It learned")
    error = Unit("minus the absolute error", is_share=False)
    told = site_sentence("Delft", est(-0.44), est(-0.4), Estimate(0.04, -0.01, 0.09), {}, error, 35)
    assert told == "Delft: absolute error 0.4 instead of 0.44 (gain +0.04, between −0.01 and +0.09: undecided)."
    crowd = dict.fromkeys(("A", "B", "C", "D", "E"), 0.2)
    many = site_sentence("Lyon", None, est(0.9), None, crowd, Unit("F1"), 50)
    assert many == "Lyon: F1 90.0 %. It learned from A (20 %), B (20 %), C (20 %), D (20 %) and others."
    assert site_sentence("Porto", None, None, None, {}, Unit(), 0) == "Porto: no test cases, so nothing can be said."
    diverged = site_sentence("Porto", est(0.9), None, None, {}, Unit(), 50)
    assert diverged == "Porto: the score on 50 test cases is not finite, so nothing can be said."


def test_the_next_step_follows_from_the_interval() -> None:
    def step(value: float, low: float, high: float) -> str:
        return next_step(est(0.9), Estimate(value, low, high), Unit(), 100).text

    assert step(0.05, 0.01, 0.09) == "Join."
    assert step(-0.05, -0.09, -0.01) == "Keep your own model."
    # By hand: the error is 0.051 / 1.96 = 0.02602; for 0.05, (2.8016 × 0.02602 / 0.05)² × 100 = 212.6 are needed.
    assert step(0.05, -0.001, 0.101) == "Collect about 120 more test cases, then decide."
    assert step(0.001, -0.048, 0.05) == "No difference found: at most 5.0 points either way."
    assert step(0.0, math.nan, math.nan) == "Collect more test cases."
    assert next_step(None, None, Unit(), 0).text == "Collect test cases."
    assert next_step(None, None, Unit(), 9).text == "Check its training."
    assert next_step(est(0.9), None, Unit(), 9).text == ""


def test_the_verdict_counts_what_is_drawn() -> None:
    sure, open_ = Estimate(0.1, 0.02, 0.2), Estimate(0.1, -0.1, 0.3)
    assert headline(2, 5, 0, sure, "site") == "Federating helps 2 of 7 sites and harms none; 5 are undecided"
    assert headline(2, 1, 4, open_, "site") == "Federating helps 2 of 7 sites and harms 4; 1 is undecided"
    assert headline(0, 1, 2, open_, "site") == "Federating harms 2 of 3 sites and helps none; 1 is undecided"
    assert headline(7, 0, 0, sure, "client") == "Federating helps all 7 clients"
    assert headline(0, 0, 1, sure, "site") == "Federating harms the site"
    assert headline(0, 7, 0, open_, "site") == "Too early to tell: all 7 sites are undecided"
    assert headline(0, 7, 0, sure, "site") == "The average site gains, but no single site can be sure of it"


def test_a_better_method_is_named() -> None:
    means = {"local": 0.5, "fedavg": 0.75, "fedfomo": 0.7}
    told = lede(means, Estimate(0.2, 0.1, 0.3), "fedfomo", [0, 1], Unit())
    average = "Average accuracy over 2 seeds: 70.0 % with FedFomo, 50.0 % alone"
    assert told == f"{average} (+20.0 points, between +10.0 and +30.0). FedAvg is better on average: 75.0 %."
    assert lede({**means, "fedavg": 0.6}, None, "fedfomo", [0], Unit()).endswith("other methods is better on average.")
    assert lede({"fedfomo": 0.7}, None, "fedfomo", [0], Unit()) == "Average accuracy: 70.0 % with FedFomo."


@pytest.mark.parametrize("gain", [0.01, 0.0, -0.01])
def test_who_is_undecided_is_told_neither_to_stay_nor_to_go(gain: float) -> None:
    for estimate in (Estimate(gain, -0.04, 0.04), Estimate(gain, math.nan, math.nan)):
        assert ": undecided)" in site_sentence("Lyon", est(0.9), est(0.9 + gain), estimate, {}, Unit(), 50)
        assert next_step(est(0.9), estimate, Unit(), 50).kind not in ("join", "keep")


def test_a_difference_is_shown_with_its_interval_and_not_as_its_middle() -> None:
    found = of_difference([1.0] * 3 + [0.0] * 7, [0.0] * 10)
    assert Unit().change(found) == "+30.0 points, between −4.4 and +54.4"
    assert Unit().change(Estimate(-0.0001, -0.0003, 0.0002)) == "+0.0 points, between +0.0 and +0.0"
    assert Unit("score", is_share=False).change(Estimate(-1.5, math.nan, math.nan)) == "−1.5"


def test_right_cases_are_counted_by_class_where_there_are_two() -> None:
    labels = torch.tensor([1, 1, 1, 0, 0])
    part = Examples(torch.zeros(5, 1), labels)
    data = [ClientData(part, part, part)]
    assert right_by_class([[1.0, 1.0, 0.0, 1.0, 0.0]], data) == [[[1, 2], [2, 3]]]
    assert right_by_class([[0.5, 1.0, 0.0, 1.0, 0.0]], data) is None  # not cases that are right or wrong
    three = Examples(torch.zeros(5, 1), torch.tensor([1, 2, 1, 0, 0]))
    assert right_by_class([[1.0, 1.0, 0.0, 1.0, 0.0]], [ClientData(part, part, three)]) is None


def est(value: float) -> Estimate:
    return Estimate(value, value - 0.01, value + 0.01)


def test_clients_that_value_each_other_stand_together() -> None:
    groups = [0, 1, 0, 1, 0, 1]
    affinity = [[0.0 if r == g else (2.0 if groups[r] == groups[g] else -1.0) for g in range(6)] for r in range(6)]
    order = order_by_likeness(affinity)
    assert sorted(order) == list(range(6))
    assert {groups[client] for client in order[:3]} in ({0}, {1})
    # Receivers 0 and 1 want what giver 4 has, 2 and 3 what giver 5 has.
    wants = [[0, 0, 0, 0, 4, -1], [0, 0, 0, 0, 4, -1], [0, 0, 0, 0, -1, 4], [0, 0, 0, 0, -1, 4], [0.0] * 6, [0.0] * 6]
    rows = order_rows(wants)
    assert abs(rows.index(0) - rows.index(1)) == 1
    assert abs(rows.index(2) - rows.index(3)) == 1


def test_nothing_that_is_not_a_number_reaches_the_page() -> None:
    source = source_of([1.0], [1.0])
    broken = replace(source, affinity=[[math.nan]], mixing=[[math.nan]])
    assert "NaN" not in build_report_data(broken).to_json()


def test_a_private_run_says_what_it_spent_and_not_what_clients_hold(tmp_path: Path) -> None:
    run = tmp_path / "private"
    call("run", "--out", str(run), *SMALL, "--rounds", "2", "--privacy.noise", "1.0")
    found = build_report_data(load(run, data=prepare_run(run)))
    assert found.privacy is not None
    assert found.privacy.training is not None
    assert found.privacy.training > 0
    assert found.privacy.validation is None  # judged without noise: no guarantee
    assert found.clients[0].train_labels is None
    assert '"judged": {}' in (run / "rounds.jsonl").read_text()  # exact losses stay with the client
    assert found.curves.validation_reference == []
    assert "--privacy.noise 1.0" in found.reproduce.command


def test_what_a_client_gives_others_take(facts: ReportData) -> None:
    assert facts.gives is not None
    assert facts.takes is not None
    assert sum(facts.gives) == pytest.approx(sum(facts.takes))
    assert max(facts.takes) <= (4 + 1) / 4  # four rounds and the last update, each at most one whole model


def test_other_data_than_the_runs_are_not_trusted(comparison: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(comparison / "fedfomo-seed-0", run)
    (run / "examination.json").unlink(missing_ok=True)
    path = run / "environment.json"
    environment = json.loads(path.read_text())
    environment["data"]["sha256"] = "0" * 64
    path.write_text(json.dumps(environment))
    found = build_report_data(load(run, data=prepare_run(run)))
    assert found.clients[0].train_labels is None
    assert any("'digits' has changed since" in note for note in found.health.notes)


@pytest.fixture
def regrouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return what replaces the latent groups of the digits in a cache of the test's own."""
    monkeypatch.setenv("FEDFOMO_CACHE", str(tmp_path / "cache"))
    data = load_data("digits", None)

    def replaced(seed: int) -> None:
        rng = np.random.default_rng(seed)
        train, test = (rng.integers(0, 2, len(part)) for part in (data.train, data.test))
        save_groups(LatentGroups(data.fingerprint, 1.0, {2: (train, test)}), user_file(data))

    return replaced


def test_a_run_whose_groups_were_built_again_is_not_scored_on_other_clients_data(
    tmp_path: Path, regrouped: Callable[[int], None]
) -> None:
    run = tmp_path / "run"
    regrouped(1)
    call("run", "--method", "local", "--out", str(run), *SMALL, "--rounds", "1")
    assert isinstance(prepare_run(run), FederatedProblem)
    regrouped(2)
    found = build_report_data(load(run, data=prepare_run(run)))
    (ours,) = own(found)
    kept = json.loads((run / "result.json").read_text())["after_update"]
    assert [score and score.value for score in ours.scores] == [kept[str(client)]["metric"] for client in range(6)]
    assert any("would go to other clients than the run's now" in note for note in found.health.notes)
    assert not (run / "examination.json").exists()


def test_runs_that_kept_no_digest_of_their_split_are_told_apart_by_what_they_did_keep(
    comparison: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(comparison / "fedfomo-seed-0", run)
    path = run / "environment.json"
    environment = json.loads(path.read_text())
    del environment["split"]
    path.write_text(json.dumps(environment))
    assert isinstance(prepare_run(run), FederatedProblem)
    environment["examples"][3]["test"] += 1
    path.write_text(json.dumps(environment))
    assert isinstance(prepare_run(run), InputError)


def test_an_examination_of_other_numbers_of_examples_is_made_again_and_never_kept(
    comparison: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(comparison / "fedfomo-seed-0", run)
    prepared, kept = prepare_run(run), run / "examination.json"
    write_scores(kept, PerExampleScores([[1.0]] * 6, None, "too long"))
    (ours,) = own(build_report_data(load(run, data=prepared)))
    result = json.loads((run / "result.json").read_text())
    expected = [result["after_update"][str(client)] for client in range(6)]
    assert [score and score.value for score in ours.scores] == pytest.approx([score["metric"] for score in expected])
    assert [len(row) for row in read_scores(kept).figures] == [score["num_examples"] for score in expected]
    kept.unlink()
    expected[2]["num_examples"] += 1
    (run / "result.json").write_text(json.dumps(result))
    load(run, data=prepared)
    assert not kept.exists()


def test_runs_of_a_comparison_that_had_other_clients_are_left_out(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "comparison"
    shutil.copytree(comparison, folder)
    path = folder / "local-seed-0" / "environment.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "split": "another"}))
    source = load(folder / "fedfomo-seed-0")
    assert set(source.ended) == {"fedavg", "fedfomo"}
    assert {seed: len(gains) for seed, gains in source.ended["fedfomo"].seed_gains.items()} == {1: 6}
    assert any("changed within the comparison: local-seed-0." in note for note in source.notes)


def test_why_data_could_not_be_loaded_is_in_the_notes(comparison: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(comparison / "fedfomo-seed-0", run)
    path = run / "config.toml"
    path.write_text(path.read_text().replace('dataset = "digits"', 'dataset = "mnist"'))
    assert isinstance(reason := prepare_run(run), InputError)
    assert any(str(reason) in note for note in build_report_data(load(run, data=reason)).health.notes)


def test_an_examination_is_kept_as_strict_json_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "examination.json"
    write_scores(path, PerExampleScores([[1.0], []], [[1.0, math.nan], [0.0, math.nan]], ""))
    json.loads(path.read_text(), parse_constant=pytest.fail)
    found = read_scores(path)
    assert found.figures == [[1.0], []]
    assert found.cross is not None
    assert math.isnan(found.cross[0][1])


@dataclass(frozen=True)
class Curious(FedAvg):
    """FedAvg whose uploads and exploration have other names than FedFomo's."""

    def exploration(self, round: int) -> float:
        return 1 / (round + 1)

    def evaluated_models(self, upload: Mapping[str, Any]) -> EvaluatedModels:
        return EvaluatedModels(upload["whom"], [1.0], [0.0], is_update=False)


def test_any_method_can_say_which_models_its_clients_evaluated_and_how_it_explores(comparison: Path) -> None:
    source = load(find_run(comparison))
    lines = [{**line, "uploads": {"0": {"whom": [3]}}} for line in source.lines]
    facts = build_report_data(replace(source, algorithm=Curious(), lines=lines))
    assert [played.epsilon for played in facts.rounds] == [1, 1 / 2, 1 / 3, 1 / 4]
    assert [played.judgements for played in facts.rounds] == [[Evaluation(0, [3], [1.0], [0.0])]] * 4
    assert facts.health.fell_back == [3, 0, 0, 0, 0, 0]
    silent = build_report_data(replace(source, algorithm=FedAvg()))
    assert all(played.judgements == [] and played.epsilon is None for played in silent.rounds)
