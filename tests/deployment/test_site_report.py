"""A site finds out by itself whether federating pays."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import torch
from safetensors.torch import load_file

from fedfomo.algorithms import make_algorithm
from fedfomo.core.local_training import Sgd
from fedfomo.deployment.settings import SiteFolder
from fedfomo.deployment.site_alone import train_alone
from fedfomo.deployment.site_client import Worker
from fedfomo.deployment.site_report import conclude, load_site
from fedfomo.deployment.user_model import load_model, load_own_data
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from in_memory_transport import Loopback, make_federation, run_federation, serve


def test_a_site_that_trains_alone_beside_the_federation_is_told_whether_it_pays(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3)
    run_federation(folder)
    site = SiteFolder(folder.sites / "leeds")
    assert conclude(site) is None  # it has not trained alone
    assert "deploy site --alone" in load_site(site).advice
    train_alone(site, None)
    sentence = conclude(site)
    assert sentence is not None
    config = folder.config()
    own = load_model(site.model, config.seed)
    data = load_own_data(site.data, None, "leeds", config.seed, own)
    problem = FederatedProblem(own.model, own.initial, [data], Sgd(**json.loads(site.asked.read_text())["training"]), 0)
    alone = simulate(problem, make_algorithm("local"), SimulationConfig(3)).models[0]
    state = load_file(site.alone / "model.safetensors")
    assert all(torch.equal(state[name], value) for name, value in own.model.state_dict(alone).items())
    model = own.model.network(alone)
    model.load_state_dict(load_file(site.models / "personalised.safetensors"))
    model.eval()
    right = int((model(data.test.inputs).argmax(1) == data.test.labels).sum())
    before = int(own.model.figures(alone, data.test).sum())
    changed = "as alone" if right == before else f"instead of {before}"
    assert sentence.startswith(f"{right} of 4 right"), sentence
    assert changed in sentence
    assert stat.S_IMODE(site.report.stat().st_mode) == 0o600
    page = site.report.read_text()
    assert sentence.partition(" The report")[0] in page
    assert "Everything on this page was found out at this site" in page
    lines = [json.loads(line) for line in site.scores.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["train"] * 3 + ["finish"]


def test_who_has_trained_alone_before_is_told_at_the_end_and_nothing_more_leaves(tmp_path: Path) -> None:
    folder, told = make_federation(tmp_path), list[str]()
    site = SiteFolder(folder.sites / "leeds")

    class Beside(Loopback):
        def worker(self, site_name: str) -> Worker:
            if site_name == "leeds" and site_name not in self._workers:
                self._workers["leeds"] = Worker(site, None, told.append)
            elif site_name == "leeds" and site.asked.exists() and not site.alone.exists():
                train_alone(site, None)
            return super().worker(site_name)

    serve(Beside(folder), folder)
    assert " of 4 right" in told[-1]
    assert str(site.report) in told[-1]
    twin = make_federation(tmp_path / "twin")
    run_federation(twin)
    sizes = [
        [json.loads(line)["bytes_received"] for line in (made.server / "run" / "rounds.jsonl").read_text().splitlines()]
        for made in (folder, twin)
    ]
    for one, other in zip(*sizes, strict=True):
        assert abs(one - other) < 100  # the digits of a score, and not a model


def test_a_site_with_privacy_keeps_its_scores_here(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1)
    site = SiteFolder(folder.sites / "leeds")
    site.privacy_settings.write_text('mode = "deployment"\nnoise = 2.0\nbudget = 50.0\ndelta = 0.01\n')
    run_federation(folder)
    (line, _) = [json.loads(line) for line in site.scores.read_text().splitlines()]
    assert line["after_update"]["num_examples"] == 4
    slot = next(one.slot for one in folder.registry() if one.name == "leeds")
    played = json.loads((folder.server / "run" / "rounds.jsonl").read_text())
    assert str(slot) not in played["after_update"]
    train_alone(site, None)
    assert conclude(site) is not None
    assert any("without" in note for note in load_site(site).notes)
