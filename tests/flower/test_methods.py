"""Every method computes over the wire what the simulator computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from federations import same, simulated
from fedfomo.algorithms import ALGORITHMS
from fedfomo.errors import InputError
from loopback import make_federation, play

QUICK = ("fedfomo", "fedavg", "apfl-logits", "local", "mocha")
# Needs the true groups, which only a scenario knows.
WITHOUT = ("oracle",)


def _equals_the_simulator(place: Path, method: str) -> bool:
    folder = make_federation(place, method=method, rounds=3)
    return same(play(folder), simulated(folder))


@pytest.mark.parametrize("method", QUICK)
def test_a_federation_equals_the_simulator_bit_for_bit(tmp_path: Path, method: str) -> None:
    assert _equals_the_simulator(tmp_path, method)


@pytest.mark.deployment
@pytest.mark.parametrize("method", sorted(set(ALGORITHMS) - set(QUICK) - set(WITHOUT)))
def test_so_does_every_other_method(tmp_path: Path, method: str) -> None:
    assert _equals_the_simulator(tmp_path, method)


def test_a_method_that_needs_a_scenario_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="group"):
        play(make_federation(tmp_path, method="oracle"))


def test_room_for_more_sites_changes_nothing(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=2, capacity=7)
    folder.write_registry(folder.identity(), [replace(site, slot=n) for n, site in enumerate(folder.registry())])
    assert same(play(folder), simulated(folder))
