"""One federation from start to finish, in real processes: TLS and authentication on, equal to the simulator."""

from __future__ import annotations

from pathlib import Path

import pytest

from federations import SITES, federation, fedfomo, megabytes_of, same
from fedfomo.deployment.audit_log import examine
from fedfomo.deployment.subprocesses import wait_until


def test_three_sites_compute_what_the_simulator_computes(tmp_path: Path) -> None:
    with federation(tmp_path, "--rounds", "2", "--min-clients", "3", "--max-sites", "3", "--epochs", "2") as made:
        made.start_server()
        made.start_sites(*SITES)
        told = made.wait()
        assert "3 of 3 sites are on line\n" in told
        assert "round 2 of 2: 3 of 3 sites answered in " in told
        assert "finished" in told
        goodbye = "the server has ended; this site may be stopped, or wait for another run"
        assert wait_until(lambda: all(f"{name}: {goodbye}" in made.told() for name in SITES), 60)
        assert 50 < max(megabytes_of(made.pid(name, "resident_node"), "Pss") for name in SITES) < 250
        assert same(made.models(), made.simulated())
        assert [sorted(played["answered"]) for played in made.rounds()] == [[0, 1, 2]] * 2
        assert examine(made.folder.deliveries)[1] is None
        status = fedfomo("status", str(made.folder.path))
    assert "2 of 2 rounds are complete" in status
    assert "whole" in status


@pytest.mark.deployment
def test_a_site_joins_while_the_federation_runs(tmp_path: Path) -> None:
    settings = ("--rounds", "60", "--min-clients", "2", "--max-sites", "3", "--epochs", "1")
    with federation(tmp_path, *settings, sites=("leeds", "turin")) as made:
        made.start_server()
        made.start_sites("leeds", "turin")
        made.wait_for(lambda: made.rounds_done() >= 1)
        fedfomo("add-site", "lyon", "--folder", str(made.folder.path))
        made.start_sites("lyon")
        made.wait()
        slot = {site.name: site.slot for site in made.all()}["lyon"]
        answered = [slot in played["answered"] for played in made.rounds()]
        assert not answered[0]
        assert answered[-1], made.told()
        assert answered == sorted(answered)  # once it is there, it stays
        assert made.models().keys() == set(SITES)


@pytest.mark.deployment
def test_sites_with_flowers_own_node_compute_the_same(tmp_path: Path) -> None:
    with federation(tmp_path, "--rounds", "2", "--min-clients", "3", "--max-sites", "3", "--epochs", "1") as made:
        made.start_server()
        made.start_sites(*SITES[:2])
        made.start_sites(SITES[2], flags=("--supernode",))
        made.wait()
        assert same(made.models(), made.simulated())
        assert made.pid(SITES[2], "flower-supernode")
