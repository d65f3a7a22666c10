"""A method of an installed package: its entry point is enough for commands, comparisons and reports to know it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

METHOD = '''
from dataclasses import dataclass

from fedfomo import FedAvg, ProximalTerm
from fedfomo.algorithms.fedavg import Download
from fedfomo.core.options import NonNegative


@dataclass(frozen=True)
class Near(FedAvg):
    """Stay near the global model."""

    mu: NonNegative = 0.1
    """Weight of the proximal term."""

    def penalty(self, download: Download) -> ProximalTerm:
        return ProximalTerm(download.model, self.mu)


@dataclass(frozen=True)
class Reader(FedAvg):
    """Read private records."""

    reads_records = True
'''
SMALL = ("--clients", "4", "--distributions", "2", "--rounds", "2", "--data-fraction", "0.2", "--workers", "0")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Install two packages as pip does, in a folder of their own; one of them lacks a module that it names."""
    folder = tmp_path / "packages"
    install(folder, "near", "near = near:Near\nreads-records = near:Reader\n")
    install(folder, "broken", "broken = lost:Lost\n")
    (folder / "near.py").write_text(METHOD)
    return folder


def install(folder: Path, name: str, entry_points: str) -> None:
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[fedfomo.algorithms]\n{entry_points}")


def call(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as a user who has those packages does."""
    surroundings = {**os.environ, "PYTHONPATH": str(packages), "COLUMNS": "200"}
    command = [sys.executable, "-m", "fedfomo", *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=surroundings, cwd=packages.parent)


def test_it_is_listed_and_described_and_a_package_that_cannot_be_imported_hides_no_others(packages: Path) -> None:
    listed = call(packages, "methods")
    assert listed.returncode == 0, listed.stderr
    assert "near  Stay near the global model." in listed.stdout
    assert "fedfomo  Every client" in listed.stdout
    assert "method 'broken' of broken: lost:Lost cannot be imported" in listed.stdout
    described = call(packages, "methods", "near").stdout
    assert "mu=0.1" in described
    assert "fedfomo run --method near --near.OPTION VALUE" in described


def test_it_is_compared_with_others_and_reported_on(packages: Path) -> None:
    flags = ("--methods", "near", "fedavg", "--near.mu", "0.5", "--seeds", "0", "--out", "runs", *SMALL)
    compared = call(packages, "compare", *flags)
    assert compared.returncode == 0, compared.stderr
    assert "near" in compared.stdout
    result = json.loads((packages.parent / "runs" / "near-seed-0" / "result.json").read_text())
    assert (result["method"], result["options"]) == ("near", {"mu": 0.5})
    reported = call(packages, "report", "runs", "--method", "near")
    assert reported.returncode == 0, reported.stderr
    assert (packages.parent / "runs" / "report.html").is_file()


def test_what_it_declares_is_heeded_as_of_any_method(packages: Path) -> None:
    refused = call(packages, "compare", "--methods", "reads-records", "--privacy.noise", "1", "--out", "runs", *SMALL)
    assert refused.returncode == 2
    assert "reads-records cannot run here: it reads private records itself" in refused.stderr
