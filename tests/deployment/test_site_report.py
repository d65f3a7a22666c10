"""A site finds out by itself whether federating pays."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedfomo.algorithms import make_algorithm
from fedfomo.core.local_training import Sgd
from fedfomo.deployment.privacy_ledger import load_ledger
from fedfomo.deployment.settings import SiteFolder
from fedfomo.deployment.site_alone import train_alone
from fedfomo.deployment.site_client import Worker
from fedfomo.deployment.site_report import conclude, load_site
from fedfomo.deployment.user_model import load_model, load_own_data
from fedfomo.privacy.accountant import epsilon_of
from fedfomo.report.about import about_run
from fedfomo.report.build import build_report_data
from fedfomo.report.per_example import RESAMPLES
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from in_memory_transport import MODEL, Loopback, make_federation, run_federation, serve


def test_a_site_that_trains_alone_beside_the_federation_is_told_whether_it_pays(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3)
    run_federation(folder)
    site = SiteFolder(folder.sites / "leeds")
    assert conclude(site) is None  # it has not trained alone
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
    assert _about(site)["Privacy"] == "No differential privacy: models were exchanged as they were."
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
    epsilon = epsilon_of(load_ledger(site)[1].queries, "training", 0.01)
    said = f"Training records ε {epsilon:.3g}, validation records without a guarantee, δ 0.01."
    assert _about(site)["Privacy"] == said
    bill = json.loads(site.ledger.read_text())
    site.ledger.write_text(json.dumps({**bill, "unprotected": [0]}))
    assert _about(site)["Privacy"].startswith("Training records without a guarantee")


def _about(site: SiteFolder) -> dict[str, str]:
    return dict(about_run(load_site(site)))


OF_SETS = """

def sureness(outputs, labels):
    return float(outputs.softmax(1)[range(len(labels)), labels].mean())


metrics = {"sureness": sureness}
"""


def test_a_metric_of_whole_sets_decides_and_not_the_accuracy_beside_it(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    site = SiteFolder(folder.sites / "leeds")
    for path in (folder.model, *(SiteFolder(folder.sites / name).model for name in ("leeds", "turin", "lyon"))):
        path.write_text(MODEL + OF_SETS)
    run_federation(folder)
    train_alone(site, None)
    assert json.loads(site.asked.read_text())["is_of_sets"] is True
    kept = [json.loads((place / name).read_text()) for place, name in _kept(site)]
    ours, theirs = (known["score"]["metric"] for known in kept)
    assert [len(known["resamples"]) for known in kept] == [RESAMPLES] * 2
    facts = build_report_data(load_site(site))
    (gain,) = facts.methods[-1].gains
    assert gain is not None
    assert gain.value == pytest.approx(ours - theirs)
    assert gain.has_interval
    assert not facts.is_share
    assert facts.sentences[0].startswith(f"leeds: sureness {ours:.3g} instead of {theirs:.3g}")


def test_a_site_that_kept_no_resamples_has_a_report(tmp_path: Path) -> None:
    """As older sites: they say neither whether their metric is of sets, nor how it does on resamples."""
    folder = make_federation(tmp_path, rounds=1)
    site = SiteFolder(folder.sites / "leeds")
    site.model.write_text(MODEL + OF_SETS)
    run_federation(folder)
    train_alone(site, None)
    for place, name in _kept(site):
        known = json.loads((place / name).read_text())
        del known["resamples"]
        (place / name).write_text(json.dumps(known))
    (gain,) = build_report_data(load_site(site)).methods[-1].gains
    assert gain is not None
    assert not gain.has_interval
    asked = json.loads(site.asked.read_text())
    del asked["is_of_sets"]
    site.asked.write_text(json.dumps(asked))
    assert conclude(site) is not None


def test_a_metric_that_fails_on_a_resample_leaves_the_score_without_an_interval(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1)
    site = SiteFolder(folder.sites / "leeds")
    fails = OF_SETS.replace("    return", "    assert len(labels.unique()) > 1\n    return")
    site.model.write_text(MODEL + fails)
    run_federation(folder)
    (place, name), _ = _kept(site)
    known = json.loads((place / name).read_text())
    assert known["score"]["num_examples"] == 4
    assert known["resamples"] == []


def _kept(site: SiteFolder) -> list[tuple[Path, str]]:
    return [(site.models, "personalised.json"), (site.alone, "result.json")]
