"""Sites that read their data lazily and are judged by metrics of sets: in a federation as in the simulator."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from federations import federation, same, simulated
from fedfomo.deployment.report import load_federation
from fedfomo.deployment.server_run import serve
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.deployment.site_alone import train_alone
from fedfomo.deployment.site_report import conclude
from in_memory_transport import Loopback, make_federation, models_of

MODEL = """
import torch
from torch import nn


def make_model():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))


def recall(outputs, labels):
    return float(((outputs.argmax(1) == 1) & (labels == 1)).sum() / max(1, int((labels == 1).sum())))


def spread(outputs, labels):
    return float(outputs.std())


metrics = {"recall": recall, "spread": spread}
primary = "recall"
"""

DATA = """
import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset):
    def __init__(self, size, noise, shift):
        self.size, self.noise, self.shift = size, noise, shift

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((2,), float(index % 2) + self.shift) + self.noise * torch.rand(2), index % 2


def load_data(folder, site):
    shift = len(site) / 4
    return DataLoader(Points(24, 0.5, shift)), Points(16, 0.0, shift)
"""


def _equip(folder: FederationFolder) -> None:
    folder.model.write_text(MODEL)
    for site in folder.registry():
        (folder.sites / site.name / "model.py").write_text(MODEL)
        (folder.sites / site.name / "data.py").write_text(DATA)


def _check(folder: FederationFolder) -> None:
    assert same(models_of(folder), simulated(folder))
    for score in json.loads(folder.result.read_text())["after_update"].values():
        assert score["metrics"].keys() >= {"recall", "spread"}
        assert score["metric"] == score["metrics"]["recall"]
        assert 0 <= score["metric"] <= 1
    assert load_federation(folder).ended


def test_lazy_data_and_metrics_of_sets_within_this_process(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3, deadline=30.0)
    _equip(folder)
    serve(Loopback(folder), folder)
    _check(folder)
    site = SiteFolder(folder.sites / "leeds")
    train_alone(site, None)
    sentence = conclude(site)
    assert sentence is not None
    assert "recall" in site.report.read_text()


@pytest.mark.deployment
def test_a_federation_of_processes_with_lazy_data_and_metrics_of_sets(tmp_path: Path) -> None:
    settings = ("--rounds", "3", "--min-clients", "3", "--max-sites", "3", "--epochs", "2")
    with federation(tmp_path, *settings) as made:
        _equip(made.folder)
        made.start_server()
        made.start_sites(*(site.name for site in made.all()), flags=("--alone",))
        made.wait()
        made.wait_for_reports()
        _check(made.folder)
        assert "spread" in made.told()
