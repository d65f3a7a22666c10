"""One federation from start to finish, in real processes: TLS and authentication on, equal to the simulator."""

from __future__ import annotations

from pathlib import Path

from federations import SITES, federation, fedfomo, same
from fedfomo.flower.delivery_log import fault_in


def test_three_sites_compute_what_the_simulator_computes(tmp_path: Path) -> None:
    with federation(tmp_path, "--rounds", "2", "--minimum", "3", "--capacity", "3", "--epochs", "2") as made:
        made.start_server()
        made.start_sites(*SITES)
        told = made.wait()
        assert "finished" in told
        assert same(made.models(), made.simulated())
        assert [sorted(played["answered"]) for played in made.rounds()] == [[0, 1, 2]] * 2
        assert fault_in(made.folder.deliveries) is None
        status = fedfomo("status", str(made.folder.path))
    assert "2 of 2 rounds are complete" in status
    assert "whole" in status
