"""A problem in a Python file of one's own, through every command that takes a named data set."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedfomo.cli.main import main
from fedfomo.deployment.user_model import load_model, load_own_data
from fedfomo.errors import InputError
from fedfomo.report.build import build_report_data
from fedfomo.report.from_run import load, prepare_run
from fedfomo.runs.callbacks import RunBar
from fedfomo.runs.records import read_record

PROBLEM = """
import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))


def sites(seed):
    rng = torch.Generator().manual_seed(seed)

    def patients(number, sign):
        inputs = torch.randn(number, 6, generator=rng)
        return inputs, (sign * inputs[:, 0] + 0.5 * torch.randn(number, generator=rng) > 0.5).long()

    signs = {"leeds": 1, "turin": 1, "lyon": -1, "porto": -1}
    return {name: (patients(20, sign), patients(60, sign)) for name, sign in signs.items()}


def auc(outputs, labels):
    risk = outputs[:, 1] - outputs[:, 0]
    return float((risk[labels == 1][:, None] > risk[labels == 0]).double().mean())


metrics = {"auc": auc}
groups = [0, 0, 1, 1]
"""


def call(*words: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "hospitals.py"
    path.write_text(PROBLEM)
    return path


def compare(problem: Path, out: Path, *further: str) -> int:
    methods = ("--methods", "fedfomo", "fedavg", "oracle", "local", "--seeds", "0", "1", "--rounds", "3")
    return call("compare", problem, *methods, "--workers", "0", "--out", out, *further)


def test_a_comparison_is_interrupted_resumed_and_reported(
    problem: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(problem, tmp_path / "whole") == 0
    told = capsys.readouterr().out
    assert "hospitals.py: 4 sites, 80 training examples" in told
    assert "Test auc in %" in told

    rounds = 0

    def stop(bar: RunBar, finished: Any) -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(RunBar, "round_done", stop)
        assert compare(problem, tmp_path / "stopped") == 130
    assert call("resume", tmp_path / "stopped", "--workers", "0") == 0
    for run in sorted((tmp_path / "whole").glob("*-seed-*")):
        again = tmp_path / "stopped" / run.name
        assert (run / "rounds.jsonl").read_bytes() == (again / "rounds.jsonl").read_bytes()
        assert read_record(run).after_update == read_record(again).after_update
    record = read_record(tmp_path / "whole" / "fedfomo-seed-1")
    assert record.metric == "auc"
    assert record.groups == [0, 0, 1, 1]

    assert call("report", tmp_path / "whole", "--method", "fedfomo") == 0
    told = capsys.readouterr().out
    assert "porto" in told
    assert "not at hand" not in told
    assert call("report", "compare", tmp_path / "whole", "--out", tmp_path / "c.html") == 0
    assert '"metric":"auc","is_share":false' in (tmp_path / "c.html").read_text()
    assert call("export", tmp_path / "whole", "--site", "lyon", "--out", tmp_path / "lyon.safetensors") == 0


def test_a_metric_of_whole_sets_decides_and_not_the_accuracy_beside_it(problem: Path, tmp_path: Path) -> None:
    out = tmp_path / "whole"
    assert call("compare", problem, "--methods", "fedfomo", "--rounds", "2", "--workers", "0", "--out", out) == 0
    run, alone = out / "fedfomo-seed-0", out / "local-seed-0"
    environment = json.loads((run / "environment.json").read_text())
    assert environment.pop("is_of_sets") is True
    ours, theirs = read_record(run).figures(), read_record(alone).figures()

    def gains() -> list[Any]:
        return build_report_data(load(run, (), prepare_run(run))).methods[-1].gains

    found = gains()
    assert [gain.value for gain in found] == pytest.approx([ours[site] - theirs[site] for site in ours])
    assert all(gain.low <= gain.value <= gain.high for gain in found)
    assert build_report_data(load(run)).sentences[0].startswith("leeds: auc 0.")  # no share, nor counted cases
    for folder in (run, alone):
        (folder / "environment.json").write_text(json.dumps(environment))  # as older versions wrote it
    assert gains() == found


def test_a_file_that_changed_is_not_gone_on_with(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", problem, "--rounds", "1", "--workers", "0", "--out", tmp_path / "run") == 0
    (tmp_path / "run" / "result.json").unlink()
    problem.write_text(PROBLEM.replace("> 0.5", "> 0.4"))
    assert call("resume", tmp_path / "run") == 2
    assert "hospitals.py has changed since" in capsys.readouterr().err
    moved = tmp_path / "elsewhere.py"
    moved.write_text(PROBLEM)
    assert call("resume", tmp_path / "run", "--data", moved, "--workers", "0") == 2  # it was called otherwise
    (tmp_path / "there").mkdir()
    moved = moved.rename(tmp_path / "there" / "hospitals.py")
    assert call("resume", tmp_path / "run", "--data", moved, "--workers", "0") == 0


def test_what_the_file_decides_is_refused_as_a_flag(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("run", problem, "--clients", "9", "--out", tmp_path / "run") == 2
    assert "hospitals.py decides its sites and its model by itself: leave out --clients" in capsys.readouterr().err
    problem.write_text(PROBLEM + "\nfrom fedfomo import Sgd\ntrainer = Sgd(epochs=1)\n")
    assert call("run", problem, "--epochs", "3", "--out", tmp_path / "run") == 2
    assert "hospitals.py has a trainer of its own" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_sites_are_shown(problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("scenarios", "show", problem, "--json", tmp_path / "sites.json") == 0
    assert "leeds" in capsys.readouterr().out
    assert [site["train"] for site in json.loads((tmp_path / "sites.json").read_text())] == [20] * 4
    assert call("check", problem) == 0


def test_dropout_and_privacy_meet_it(problem: Path, tmp_path: Path) -> None:
    flags = ("--rounds", "2", "--client-dropout", "0.3", "--privacy.noise", "1.0", "--workers", "2")
    assert call("run", problem, "--method", "fedavg", *flags, "--out", tmp_path / "run") == 0
    record = read_record(tmp_path / "run")
    assert record.spent is not None
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["labels"] is None


def test_a_problem_made_by_hand_is_run(tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(
        PROBLEM.replace("def sites", "def spread")
        + """
from fedfomo import Sgd
from fedfomo.core.model import Model
from fedfomo.runs.site_data import client_data
from fedfomo.simulation.problem import FederatedProblem


def problem(seed):
    model = Model(make_model())
    clients = [client_data(name, site, 0.5, seed) for name, site in spread(seed).items()]
    return FederatedProblem(model, model.read(), clients, Sgd(), seed)
"""
    )
    assert call("run", path, "--method", "local", "--rounds", "1", "--workers", "0", "--out", tmp_path / "run") == 0
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["names"][0] == "client 0"


def test_the_same_file_serves_a_real_site(problem: Path) -> None:
    own = load_model(problem, seed=0)
    assert own.model.metrics.leading == "auc"
    assert len(load_own_data(problem, None, "turin", 0, own).train) == 20


LOOP = """
import torch


def trainer(model, data, context):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, labels in context.batches():
        optimizer.zero_grad()
        (context.loss(model(inputs), labels).mean() + context.penalty()).backward()
        optimizer.step()
"""


def test_a_comparison_of_all_leaves_out_what_a_loop_of_ones_own_cannot_train(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problem.write_text(PROBLEM + LOOP)
    shared = (problem, "--seeds", "0", "--rounds", "1", "--workers", "0", "--out")
    assert call("compare", *shared, tmp_path / "all", "--methods", "all") == 0
    told = capsys.readouterr().out
    left_out = told[: told.index(" left out of all: it takes steps that a training loop of your own does not give")]
    assert {"apfl-logits", "mocha-linear", "per-fedavg", "pfedme"} <= set(
        left_out.split("\n")[-1].replace(",", "").split()
    )
    assert (tmp_path / "all" / "fedprox-seed-0" / "result.json").exists()
    assert "mocha-linear" not in (tmp_path / "all" / "config.toml").read_text()
    assert call("report", tmp_path / "all", "--out", tmp_path / "all.html") == 0
    assert call("compare", *shared, tmp_path / "named", "--methods", "per-fedavg") == 2


def test_a_file_scales_its_inputs_and_a_private_run_counts_what_that_costs(
    problem: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    private = ("--privacy.noise", "4", "--rounds", "1", "--workers", "0")
    assert call("run", problem, *private, "--out", tmp_path / "unscaled") == 0
    problem.write_text(PROBLEM + "\nstandardise = True\n")
    assert call("run", problem, *private, "--out", tmp_path / "exact") == 2
    assert "means of private records would leave without noise" in capsys.readouterr().err
    noisy = "\nfrom fedfomo import Standardise\nstandardise = Standardise(noise=5.0, bounds=(-3, 3))\n"
    problem.write_text(PROBLEM + noisy)
    assert call("run", problem, *private, "--out", tmp_path / "scaled") == 0
    before, after = (read_record(tmp_path / name).spent for name in ("unscaled", "scaled"))
    assert before is not None
    assert after is not None
    assert after[0].training > before[0].training
    scaling = json.loads((tmp_path / "scaled" / "environment.json").read_text())["scaling"]
    assert len(scaling["means"][0]) == 6
    with pytest.raises(InputError, match="takes all sites' data at once"):
        load_own_data(problem, None, "leeds", 0, load_model(problem, 0))
