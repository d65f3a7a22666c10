"""Several experiments on one federation: keys stay, each is the simulator's, and one can start from another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cli_calls import call, refused
from federations import SITES, federation, same, simulated
from fedfomo.deployment.experiments import experiments_of, mean, prepare_experiment
from fedfomo.deployment.report import load_federation
from fedfomo.deployment.server_run import serve
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.deployment.site_alone import train_alone
from fedfomo.deployment.site_report import conclude
from fedfomo.deployment.site_status import facts as site_facts
from fedfomo.deployment.status import facts, sentences
from fedfomo.errors import InputError
from in_memory_transport import MODEL, Loopback, make_federation, models_of


def begin(folder: FederationFolder, name: str, settings: str, start_from: str | None = None) -> FederationFolder:
    path = folder.path.parent / f"{name}.toml"
    path.write_text(settings)
    return prepare_experiment(folder, name, path, start_from)


def uploaded(folder: FederationFolder) -> dict[int, Tensor]:
    return {int(path.stem): load_file(path)[path.stem] for path in sorted(folder.uploaded.iterdir())}


@pytest.mark.parametrize("method", ["fedfomo", "fedavg", "ditto"])
def test_experiments_one_after_the_other_are_each_the_simulators(method: str, tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=2, deadline=30.0)
    serve(Loopback(folder), folder)
    first = models_of(folder)
    registry = folder.registry()
    second = begin(folder, "second", f'method = "{method}"\nrounds = 3\nseed = 5\n')
    serve(Loopback(second), second)
    third = begin(folder, "third", f'method = "{method}"\n', start_from="second")
    serve(Loopback(third), third)
    assert same(first, models_of(folder))  # they stay
    assert same(models_of(folder), simulated(folder))
    assert same(models_of(second), simulated(second))
    assert same(models_of(third), simulated(third, uploaded(second)))
    assert not same(models_of(third), simulated(third))  # the start is no matter of words
    assert folder.registry() == registry
    assert experiments_of(folder) == ["second", "third"]
    config = third.config()
    assert (config.rounds, config.training, config.seed) == (2, folder.config().training, folder.config().seed)


def test_a_site_that_comes_later_starts_from_the_mean(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, ("leeds", "turin", "lyon"), rounds=1, deadline=2.0, min_clients=2)
    link = Loopback(folder)
    link.away = {"lyon"}
    serve(link, folder)
    warm = begin(folder, "warm", "rounds = 2\n", start_from="federation")
    serve(Loopback(warm), warm)
    starts = uploaded(folder)
    assert len(starts) == 2
    assert torch.equal(mean(starts), ((starts[min(starts)].double() + starts[max(starts)].double()) / 2).float())
    assert same(models_of(warm), simulated(warm, starts))


def test_a_crash_in_a_warm_started_experiment_changes_no_bit(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1, deadline=30.0)
    serve(Loopback(folder), folder)
    warm = begin(folder, "warm", "rounds = 3\n", start_from="federation")
    sent: list[str] = []

    class KilledError(Exception):
        """What ends the server."""

    class Dying(Loopback):
        def push_messages(self, messages: Any) -> Any:
            sent.append("")
            if len(sent) == 5:
                raise KilledError
            return super().push_messages(messages)

    with pytest.raises(KilledError):
        serve(Dying(warm), warm)
    again = prepare_experiment(folder, "warm", None, None)
    serve(Loopback(again), again)
    assert (warm.run / "attempts").read_text().split() == ["0", "1"]
    assert same(models_of(warm), simulated(warm, uploaded(folder)))


def test_a_site_takes_part_in_what_its_policy_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_federation(tmp_path, rounds=1, deadline=2.0)
    SiteFolder(folder.sites / "lyon").policy.write_text('experiments = ["federation", "third"]\nmethods = ["fedfomo"]')
    serve(Loopback(folder), folder)
    second = begin(folder, "second", "")
    serve(Loopback(second), second)
    third = begin(folder, "third", 'method = "fedavg"\n')
    serve(Loopback(third), third)
    lyon = next(site.slot for site in folder.registry() if site.name == "lyon")
    words = "this site's policy refuses the experiment 'second': it takes part in federation, third"
    for made, reason in ((second, words), (third, "this site's policy refuses the method 'fedavg'")):
        (line,) = (json.loads(line) for line in (made.run / "rounds.jsonl").read_text().splitlines())
        assert lyon not in line["answered"]
        assert line["faults"][str(lyon)].startswith(reason)
        assert reason in caplog.text
        assert not (folder.sites / "lyon" / "experiments").exists()
    assert (folder.sites / "lyon" / "models" / "personalised.safetensors").exists()


def test_what_cannot_be_begun_is_refused_in_words(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1)

    def fault(name: str, settings: str | None, start_from: str | None = None) -> str:
        path = None if settings is None else tmp_path / "new.toml"
        if path is not None:
            path.write_text(settings or "")
        with pytest.raises(InputError) as error:
            prepare_experiment(folder, name, path, start_from)
        assert not (folder.experiments / name).exists() or name == "made"
        return str(error.value)

    assert "use a-z, 0-9" in fault("../elsewhere", None)
    assert "use a-z, 0-9" in fault("a" * 65, None)
    assert "which `fedfomo deploy server` runs" in fault("federation", "")
    assert "say by --config how it trains" in fault("new", None)
    assert "address is one for all experiments" in fault("new", 'address = "127.0.0.1:9"')
    assert "roundz" in fault("new", "roundz = 3")
    assert "experiment 'none'" in fault("new", "", start_from="none")
    assert "no site has uploaded a whole model" in fault("new", "", start_from="federation")
    assert "fedavg-shared" in fault("new", 'method = "fedavg-shared"')
    serve(Loopback(folder), folder)
    made = begin(folder, "made", "rounds = 2", start_from="federation")
    assert prepare_experiment(folder, "made", None, "federation").place == made.place
    assert "was begun with other settings" in fault("made", "rounds = 3")
    assert "was begun from 'federation'" in fault("made", None, start_from="other")
    folder.model.write_text(MODEL.replace("600", "500"))
    assert "it trained another network" in fault("new", "", start_from="federation")
    with pytest.raises(InputError, match="has no experiment 'new'"):
        folder.of("new").config()


def test_status_report_and_training_alone_name_the_experiment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = make_federation(tmp_path, rounds=1)
    serve(Loopback(folder), folder)
    pilot = begin(folder, "pilot", "rounds = 2\n", start_from="federation")
    pilot.note_latest()  # as the server's process does
    serve(Loopback(pilot), pilot)
    assert next(sentences(pilot)) == "experiment 'pilot'"
    assert facts(folder.latest())["experiment"] == "pilot"
    assert facts(folder)["experiment"] == "federation"
    assert load_federation(pilot).title.startswith("Experiment pilot in a federation of 3 sites")
    call("deploy", "status", str(folder.path), "--json")
    assert json.loads(capsys.readouterr().out)["rounds"] == 2
    call("deploy", "status", str(folder.path), "--experiment", "federation", "--json")
    assert json.loads(capsys.readouterr().out)["rounds"] == 1
    assert "has no experiment" in refused(capsys, "deploy", "status", str(folder.path), "--experiment", "other")
    call("report", str(pilot.place))
    assert (pilot.place / "report.html").exists()
    site = SiteFolder(folder.sites / "leeds")
    assert site_facts(site)["experiment"] == "pilot"
    assert site_facts(site)["rounds_answered"] == 2
    train_alone(site.latest(), None)
    assert conclude(site.latest()) is not None
    assert site.latest().report == site.path / "experiments" / "pilot" / "report.html"
    assert "experiment pilot" in site.latest().report.read_text()
    assert not site.report.exists()


def test_one_ledger_counts_what_leaves_in_all_experiments(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1)
    settings = 'mode = "deployment"\nnoise = 2.0\nbudget = 50.0\ndelta = 0.01\n'
    site = SiteFolder(folder.sites / "leeds")
    site.privacy_settings.write_text(settings)
    serve(Loopback(folder), folder)
    once = json.loads(site.ledger.read_text())["looks"]
    second = begin(folder, "second", "")
    serve(Loopback(second), second)
    twice = json.loads(site.ledger.read_text())["looks"]
    assert [row[-1] for row in twice] == [2 * row[-1] for row in once]
    open_site = SiteFolder(folder.sites / "turin")
    assert json.loads(open_site.ledger.read_text())["unprotected"] == [0, 1, "second 00000", "second 00001"]


@pytest.mark.deployment
def test_real_sites_play_three_experiments_and_one_is_killed(tmp_path: Path) -> None:
    with federation(tmp_path, "--rounds", "2", "--min-clients", "3", "--max-sites", "3", "--epochs", "1") as made:
        made.start_server()
        made.start_sites(*SITES)
        made.wait()
        settings = tmp_path / "warm.toml"
        settings.write_text("rounds = 6\nepochs = 2\n")
        made.start_experiment("warm", "--config", str(settings), "--start-from", "federation")
        warm = made.folder.of("warm")
        made.wait_for(lambda: warm.status.exists() and json.loads(warm.status.read_bytes())["rounds_done"] >= 2)
        supervisor = made._running.pop("server")
        supervisor.kill()
        supervisor.wait()
        made.start_experiment("warm")
        told = made.wait()
        assert "experiment 'warm'" in told
        assert same(models_of(warm), simulated(warm, uploaded(made.folder)))
        assert len((warm.run / "attempts").read_text().split()) == 2
        settings.write_text('method = "fedavg"\nrounds = 1\n')
        made.start_experiment("plain", "--config", str(settings))
        made.wait()
        plain = made.folder.of("plain")
        assert same(models_of(plain), simulated(plain))
        assert same(made.models(), made.simulated())
