"""`federate(..., out=FOLDER)` keeps its runs: they can be gone on with, read again, reported on and exported."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import fedfomo
from cli_calls import call, refused
from fedfomo.algorithms import make_algorithm
from fedfomo.errors import InputError
from fedfomo.simulation.callbacks import Callback, FinishedRound

Sites = dict[str, tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]]


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def part(seed: int, number: int, flipped: bool = False) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(number, 3, generator=torch.Generator().manual_seed(seed))
    return inputs, ((inputs.sum(dim=1) > 0) != flipped).long()


def four_sites() -> Sites:
    return {name: (part(k, 20, k > 1), part(k + 10, 24, k > 1)) for k, name in enumerate(("leeds", "turin", "a", "b"))}


USUAL: dict[str, Any] = {"rounds": 4, "trainer": fedfomo.Sgd(batch_size=10, epochs=1), "workers": 0}


def federated(**arguments: Any) -> fedfomo.FederationResult:
    return fedfomo.federate(network, four_sites(), **{**USUAL, **arguments})


class Counter(Callback):
    """Counts rounds, and ends a run in the midst."""

    def __init__(self, end_after: int | None = None, by: str = "interrupt") -> None:
        self.rounds = 0
        self._end_after = end_after
        self._by = by

    def round_done(self, finished: FinishedRound) -> None:
        self.rounds += 1
        if self.rounds == self._end_after:
            if self._by == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> fedfomo.FederationResult:
    return federated(out=tmp_path_factory.mktemp("federations") / "whole")


def same_models(one: fedfomo.FederationResult, other: fedfomo.FederationResult) -> bool:
    pairs = ((one.models[site].state_dict(), other.models[site].state_dict()) for site in one.sites)
    return all(torch.equal(mine[name], theirs[name]) for mine, theirs in pairs for name in mine)


def test_each_method_has_a_run_folder_as_the_command_line_makes_it(whole: fedfomo.FederationResult) -> None:
    out = whole.folder.parent
    assert {path.name for path in out.iterdir()} == {
        "config.toml",
        *(f"{method}-seed-0" for method in ("fedfomo-plus", "local", "fedavg")),
    }
    assert {"config.toml", "environment.json", "rounds.jsonl", "seconds.jsonl", "models", "result.json"} <= {
        path.name for path in whole.folder.iterdir()
    }
    assert len((whole.folder / "rounds.jsonl").read_text().splitlines()) == 4
    kept = load_file(whole.folder / "models" / "client-00001.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in whole.models["turin"].state_dict().items())


def test_a_folder_changes_no_bit(whole: fedfomo.FederationResult) -> None:
    without = federated()
    assert same_models(without, whole)
    assert (without.scores, without.local_scores) == (whole.scores, whole.local_scores)
    assert without.folder.exists()
    folder = without.folder
    del without
    assert not folder.exists()


def test_what_is_finished_is_read_and_not_run_again(whole: fedfomo.FederationResult) -> None:
    counter = Counter()
    again = federated(out=whole.folder.parent, callback=counter)
    assert counter.rounds == 0
    assert same_models(again, whole)
    assert (again.scores, again.notes, str(again)) == (whole.scores, whole.notes, str(whole))


@pytest.mark.parametrize("rounds", [1, 3, 4, 6, 10])  # in the method's run, at its end, and in those after it
def test_after_an_interruption_it_goes_on_to_the_same_bits(
    whole: fedfomo.FederationResult, tmp_path: Path, rounds: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        federated(out=tmp_path / "run", callback=Counter(rounds))
    counter = Counter()
    resumed = federated(out=tmp_path / "run", callback=counter)
    assert counter.rounds == 12 - rounds
    assert same_models(resumed, whole)
    for method in ("fedfomo-plus", "local", "fedavg"):
        logs = [
            (out / f"{method}-seed-0" / "rounds.jsonl").read_bytes() for out in (tmp_path / "run", whole.folder.parent)
        ]
        assert logs[0] == logs[1]


def test_after_kill_it_goes_on_to_the_same_bits(whole: fedfomo.FederationResult, tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from sites.test_run_folders import *;"
        f"federated(out={str(tmp_path / 'run')!r}, callback=Counter(2, 'kill'))"
    )
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path})
    assert ended.returncode == -signal.SIGKILL
    assert same_models(federated(out=tmp_path / "run"), whole)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rounds": 5}, "begun with rounds = 4, and now it is 5"),
        ({"trainer": fedfomo.Sgd(batch_size=10, epochs=2)}, "begun with trainer = .*epochs=2"),
        ({"participation": 0.5}, "begun with participation = 1.0, and now it is 0.5"),
        ({"options": {"num_downloads": 2}}, "begun with options"),
        ({"privacy": fedfomo.Privacy(noise=1.0, delta=1e-3)}, "begun with privacy"),
        ({"loss": nn.functional.cross_entropy}, "begun with loss = 'classification', and now it is 'cross_entropy'"),
        ({"metric": lambda outputs, labels: (outputs.argmax(1) == labels).float() / 2}, "begun with metric"),
    ],
)
def test_other_settings_are_refused_by_name(
    whole: fedfomo.FederationResult, changed: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        federated(out=whole.folder.parent, **changed)


def test_other_data_and_other_models_are_refused(whole: fedfomo.FederationResult) -> None:
    out = whole.folder.parent
    sites = four_sites()
    sites["turin"] = (part(1, 20), part(99, 24))
    with pytest.raises(InputError, match="begun with other data of turin: give the same again, or another folder"):
        fedfomo.federate(network, sites, out=out, **USUAL)
    with pytest.raises(InputError, match="begun with sites = "):
        fedfomo.federate(network, {"leeds": four_sites()["leeds"]}, out=out, **USUAL)
    for other in (nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), nn.Linear(3, 2)):
        with pytest.raises(InputError, match="begun with another model, loss or metric"):
            fedfomo.federate(lambda other=other: other, four_sites(), out=out, **USUAL)


def test_a_loss_of_the_same_name_that_computes_something_else_is_refused(tmp_path: Path) -> None:
    def times(factor: float) -> Any:
        return lambda outputs, labels: factor * nn.functional.cross_entropy(outputs, labels)

    federated(out=tmp_path / "run", loss=times(1.0), rounds=1)
    with pytest.raises(InputError, match="another model, loss or metric"):
        federated(out=tmp_path / "run", loss=times(2.0), rounds=1)


def test_folders_of_something_else_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="holds something else than runs of federate"):
        federated(out=tmp_path)
    with pytest.raises(InputError, match="is a file: give a folder"):
        federated(out=tmp_path / "notes.txt")


def test_baselines_and_seeds_can_be_added_later(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = federated(out=out, baselines=())
    counter = Counter()
    more = federated(out=out, baselines="ditto", seeds=(0, 1), callback=counter)
    assert counter.rounds == 4 + 3 * 4
    assert same_models(first, more)
    assert set(more.further_seeds) == {1}
    assert more.further_seeds[1].seed == 1
    assert not same_models(more, more.further_seeds[1])
    (fedfomo_facts,) = [facts for facts in more.report_data.methods if facts.method == "fedfomo-plus"]
    assert more.report_data.seeds == [0, 1]
    means = [sum(result.scores[site].metric for site in result.sites) / 4 for result in (more, more.further_seeds[1])]
    assert fedfomo_facts.mean == pytest.approx(sum(means) / 2)
    assert {facts.method for facts in more.report_data.methods} == {"local", "ditto", "fedfomo-plus"}


def test_training_alone_happens_in_every_round(tmp_path: Path) -> None:
    result = federated(out=tmp_path / "run", participation=0.5)
    for method, cohort in (("local", 4), ("fedfomo-plus", 2), ("fedavg", 2)):
        lines = (tmp_path / "run" / f"{method}-seed-0" / "rounds.jsonl").read_text().splitlines()
        assert {len(json.loads(line)["cohort"]) for line in lines} == {cohort}
    assert not any("gains over Local are too large" in note for note in result.report_data.health.notes)


def test_the_command_line_reports_on_it_and_says_what_it_lacks(
    whole: fedfomo.FederationResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    kept = federated(out=out)
    page = tmp_path / "page.html"
    call("report", str(out), "--out", str(page))
    printed = capsys.readouterr().out
    assert "of this comparison: fedfomo-plus with seed 0" in printed
    assert str(kept).splitlines()[0] in printed  # the same paired intervals
    written = page.read_text()
    assert "not at hand here (they are with whoever called federate" in written
    assert "models are not tried on each other" in written
    assert "intervals are unpaired" not in written
    assert "label mixes are missing" not in written
    assert '"name":"leeds"' in written
    kept.report(tmp_path / "whole.html")
    assert "not at hand" not in (tmp_path / "whole.html").read_text()
    call("report", str(out), "--out", str(page))  # by now, what it lacked was kept
    assert "not at hand" not in page.read_text()


def test_other_commands_know_such_folders(
    whole: fedfomo.FederationResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, file = str(whole.folder.parent), tmp_path / "leeds.safetensors"
    call("export", out, "--site", "leeds", "--out", str(file))
    assert "make_model()" in capsys.readouterr().out
    network().load_state_dict(load_file(file))
    assert "the same call of federate" in refused(capsys, "resume", out)
    assert "is of federate" in refused(capsys, "report", "compare", out)


def test_private_folders_do_not_say_who_holds_what(tmp_path: Path) -> None:
    result = federated(out=tmp_path / "run", privacy=fedfomo.Privacy(noise=1.0, delta=1e-3), rounds=1, baselines=())
    assert json.loads((result.folder / "environment.json").read_text())["labels"] is None
    assert '"judged": {}' in (result.folder / "rounds.jsonl").read_text()


def test_nothing_is_tried_for_a_report_until_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[bool] = []
    monkeypatch.setattr("fedfomo.sites.result.build_report_data", lambda source: tried.append(True))
    monkeypatch.setattr("fedfomo.report.final_results.score_examples", lambda *_: tried.append(True))
    federated(rounds=1)
    assert tried == []


def test_trackers_hear_of_every_run(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    federated(out=tmp_path / "run", track="tensorboard", rounds=1)
    for method in ("fedfomo-plus", "local", "fedavg"):
        assert any((tmp_path / "run" / f"{method}-seed-0" / "tensorboard").iterdir())
    with pytest.raises(InputError, match="give a folder in out="):
        federated(track=("tensorboard",))


def test_progress_is_shown_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    federated(rounds=2, progress=True)
    told = capsys.readouterr()
    assert "fedfomo-plus, seed 0: round 2/2, accuracy" in told.err
    assert told.out == ""
    federated(rounds=2)  # no terminal
    assert capsys.readouterr().err == ""


def test_a_method_may_be_an_object(whole: fedfomo.FederationResult, tmp_path: Path) -> None:
    result = federated(method=make_algorithm("fedfomo-plus"), out=tmp_path / "run")
    assert result.method == "fedfomo-plus"
    assert same_models(result, whole)
    with pytest.raises(InputError, match="is a class, call it"):
        federated(method=type(make_algorithm("fedfomo-plus")))
    with pytest.raises(InputError, match="options go with the name of a method"):
        federated(method=make_algorithm("fedfomo-plus"), options={"epsilon": 0.1})


METHOD = """
from dataclasses import dataclass

from fedfomo.algorithms.fedavg import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""


def test_a_method_from_a_file_goes_on_as_long_as_the_file_is_the_same(tmp_path: Path) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "run"
    file.write_text(METHOD)
    with pytest.raises(KeyboardInterrupt):
        federated(method=f"{file}:Mine", out=out, baselines=(), callback=Counter(2))
    result = federated(method=f"{file}:Mine", out=out, baselines=())
    assert result.folder == out / "Mine-seed-0"
    as_object = federated(method=make_algorithm(f"{file}:Mine"), out=tmp_path / "object", baselines=())
    assert same_models(result, as_object)
    assert as_object.folder.name == "Mine-seed-0"
    beside = federated(out=tmp_path / "beside", baselines=[f"{file}:Mine"])
    assert (tmp_path / "beside" / "Mine-seed-0" / "result.json").exists()
    assert "Mine" in {facts.method for facts in beside.report_data.methods}
    file.write_text(METHOD.replace("pass", "keep_best: bool = True"))
    for arguments in (
        {"method": f"{file}:Mine", "out": out},
        {"baselines": [f"{file}:Mine"], "out": tmp_path / "beside"},
    ):
        with pytest.raises(InputError, match=r"mine\.py has changed since .*: undo the change"):
            federated(**arguments)


def test_a_report_says_how_an_unfinished_folder_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        federated(out=tmp_path / "run", callback=Counter(2))
    call("report", str(tmp_path / "run"))
    told = capsys.readouterr().out
    assert "2 of 4 rounds are done: unless it is still running, the same call of federate" in told
    assert "fedfomo resume" not in told


def test_a_method_with_options_stands_beside_itself_without(tmp_path: Path) -> None:
    result = federated(method="local", options={"keep_best": True}, out=tmp_path / "run", baselines=())
    assert result.folder.name == "local-with-options-seed-0"
    assert (tmp_path / "run" / "local-seed-0" / "result.json").exists()
    assert result.local_scores != {}
