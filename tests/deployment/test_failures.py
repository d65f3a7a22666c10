"""Whatever is killed, the run goes on, and nothing is applied twice."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from federations import SITES, Federation, asleep, federation, kill, same

pytestmark = pytest.mark.deployment

LONG = ("--rounds", "4", "--min-clients", "3", "--max-sites", "3", "--epochs", "2", "--deadline", "120")


def _in_the_midst(made: Federation, rounds_done: int) -> None:
    """Wait until a round is under way: its first order has left."""
    made.wait_for(lambda: made.rounds_done() >= rounds_done)
    sent = f'"event": "sent", "round": {rounds_done},'
    made.wait_for(lambda: sent in made.folder.deliveries.read_text())


@pytest.mark.parametrize("victim", ["flwr-serverapp", "flower-superlink"])
def test_the_server_dies_and_the_bits_stay_the_same(tmp_path: Path, victim: str) -> None:
    with federation(tmp_path, *LONG) as made:
        made.start_server()
        made.start_sites(*SITES)
        _in_the_midst(made, 1)
        died = time.monotonic()
        kill(made.pid("server", victim))
        made.wait_for(lambda: made.rounds_done() >= 2)
        recovered = time.monotonic() - died
        told = made.wait()
        assert ("ServerApp died" if victim == "flwr-serverapp" else "SuperLink ended with -9") in told
        assert len((made.folder.server / "run" / "attempts").read_text().splitlines()) == 2
        assert [sorted(played["answered"]) for played in made.rounds()] == [[0, 1, 2]] * 4
        assert same(made.models(), made.simulated())
    print(f"{victim}: the round that was hit was complete {recovered:.0f} s after the kill")  # noqa: T201


def test_everything_of_the_server_dies_and_is_started_anew(tmp_path: Path) -> None:
    with federation(tmp_path, *LONG) as made:
        made.start_server()
        made.start_sites(*SITES)
        _in_the_midst(made, 1)
        supervisor = made._running.pop("server")
        supervisor.kill()
        supervisor.wait()
        made.start_server()
        made.wait()
        assert [sorted(played["answered"]) for played in made.rounds()] == [[0, 1, 2]] * 4
        assert same(made.models(), made.simulated())


def test_a_site_dies_and_comes_back(tmp_path: Path) -> None:
    settings = (*LONG[:2], "--min-clients", "2", *LONG[4:])
    with federation(tmp_path, *settings, "--rounds", "40") as made:
        made.start_server()
        made.start_sites(*SITES)
        _in_the_midst(made, 1)
        kill(made.pid("turin", "resident_node"))
        made.wait()
        slot = {site.name: site.slot for site in made.all()}["turin"]
        answered = [slot in played["answered"] for played in made.rounds()]
        assert answered[0]
        assert not all(answered[1:])
        assert answered[-1], made.told()
        without = next(played for played in made.rounds() if slot not in played["answered"])
        assert len(without["answered"]) == 2


def test_a_site_that_sleeps_past_the_deadline_is_left_out_and_its_answer_never_used(tmp_path: Path) -> None:
    deadline = 25
    settings = ("--rounds", "4", "--min-clients", "2", "--max-sites", "3", "--epochs", "2", "--deadline", str(deadline))
    with federation(tmp_path, *settings) as made:
        made.start_server()
        made.start_sites(*SITES)
        _in_the_midst(made, 1)
        with asleep(made, "turin"):
            made.wait_for(lambda: made.rounds_done() >= 2)
            seconds = json.loads(made.folder.status.read_bytes())["seconds"]
        made.wait()
        slot = {site.name: site.slot for site in made.all()}["turin"]
        missed = made.rounds()[1]
        assert sorted([*missed["answered"], slot]) == [0, 1, 2]
        assert str(slot) in missed["faults"]  # by the server's clock, or by Flower's, which says it in other words
        assert deadline <= seconds <= deadline + 5
        received = [json.loads(line) for line in made.folder.deliveries.read_text().splitlines()]
        rounds = [r["round"] for r in received if r["event"] == "received" and r["from"] == "turin"]
        assert 0 in rounds
        assert 1 not in rounds
    print(f"asleep: the round closed after {seconds:.1f} s; turin was heard in rounds {rounds}")  # noqa: T201
