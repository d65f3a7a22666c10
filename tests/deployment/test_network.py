"""One server and eight sites on a network of their own: links that are slow, lose packets, flap and are cut."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from federations import Federation, same
from fedfomo.algorithms import make_algorithm
from fedfomo.core.round import configure_clients, run_round
from fedfomo.deployment.fleet_connection import FleetConnection
from fedfomo.deployment.user_model import load_model, load_own_data
from fedfomo.io import read_lines
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.testing import InProcess
from fedfomo.testing.toy_federation import federation_of
from networks import SERVER, BreakingProxy, Network, Unavailable
from real_server import threaded

pytestmark = pytest.mark.deployment

NAMES = tuple(f"site{number}" for number in range(8))
PORT = 8443


class NetworkFederation(Federation):
    """A federation each of whose places is in a network namespace."""

    def __init__(self, place: Path, network: Network, *settings: str) -> None:
        self.network = network
        address = f"{SERVER}:{PORT}"
        super().__init__(place, "--listen", address, *settings, sites=NAMES, address=address)

    def _start(self, name: str, *arguments: str, verb: str = "") -> None:
        verb = verb or ("server" if name == "server" else "site")
        command = [*self.network.within(name), sys.executable, "-m", "fedfomo", "deploy", verb, *arguments]
        with self.output.open("ab") as output:
            self._running[name] = subprocess.Popen(command, stdout=output, stderr=output)


@contextmanager
def _federation(place: Path, settings: tuple[str, ...], **how: float) -> Generator[NetworkFederation]:
    """Make a network, and a federation on it; skip the test where there can be none."""
    try:
        network = Network(NAMES, **how)
    except Unavailable as reason:
        pytest.skip(str(reason))
    try:
        made = NetworkFederation(place, network, "--max-sites", "8", "--epochs", "1", *settings)
        try:
            yield made
        finally:
            made.close()
    finally:
        network.close()


def test_links_that_are_cut_and_flap_cost_time_and_no_bit(tmp_path: Path) -> None:
    """Every round takes all eight: those whose answer was lost are asked again, and have it ready."""
    settings = ("--rounds", "4", "--min-clients", "8", "--deadline", "15")
    with _federation(tmp_path, settings) as made:
        made.start_server()
        made.start_sites(*NAMES)
        made.wait_for(lambda: made.rounds_done() >= 1)
        made.network.cut("site7")
        made.network.flap("site6", 5, 0.7)
        made.network.join("site7")
        made.wait_for(lambda: made.rounds_done() >= 3)
        made.network.flap("server", 3, 1.0)
        made.wait()
        assert [len(played["answered"]) for played in made.rounds()] == [8] * 4
        assert _uploads(made) == {(number, name): 1 for number in range(4) for name in NAMES}
        assert same(made.models(), made.simulated())


def test_slow_links_that_lose_packets_cost_time_and_no_bit(tmp_path: Path) -> None:
    """80 ms there and back, and three packets of a hundred lost, each way."""
    settings = ("--rounds", "3", "--min-clients", "8", "--deadline", "60")
    with _federation(tmp_path, settings, delay=0.04, jitter=0.02, loss=0.03) as made:
        made.start_server()
        made.start_sites(*NAMES)
        made.wait_for(lambda: made.rounds_done() >= 1)
        assert made.network.seconds_to_connect("site0", PORT) >= 2 * (0.04 - 0.02)
        made.wait()
        assert made.network.packets_sent_again("server") > 0
        assert [len(played["answered"]) for played in made.rounds()] == [8] * 3
        assert _uploads(made) == {(number, name): 1 for number in range(3) for name in NAMES}
        assert same(made.models(), made.simulated())


def test_rounds_close_without_a_site_whose_link_is_cut(tmp_path: Path) -> None:
    """The models are those of the simulator for the rounds and answers that were in; the other links lose packets."""
    deadline = 8
    settings = ("--rounds", "40", "--min-clients", "2", "--deadline", str(deadline))
    with _federation(tmp_path, settings, delay=0.01, jitter=0.005, loss=0.01) as made:
        made.start_server()
        made.start_sites(*NAMES)
        made.wait_for(lambda: made.rounds_done() >= 2)
        made.network.cut("site7")
        before = made.rounds_done()
        made.wait_for(lambda: made.rounds_done() >= before + 2)  # the first one may have been answered before the cut
        seconds = json.loads(made.folder.status.read_bytes())["seconds"]
        assert deadline <= seconds <= deadline + 5
        made.wait_for(lambda: made.rounds_done() >= before + 3)
        made.network.join("site7")
        made.wait()
        seven = next(site.slot for site in made.all() if site.name == "site7")
        answered = [seven in played["answered"] for played in made.rounds()]
        assert answered[0]
        assert not all(answered)
        assert answered[-1], made.told()
        assert max(_uploads(made).values()) == 1
        assert json.loads(made.folder.result.read_text())["without_last_update"] == []
        assert same(made.models(), _simulated(made))


def test_connections_that_are_broken_off_cost_time_and_no_bit(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    names = ("leeds", "turin", "lyon")
    settings = ("--rounds", "3", "--min-clients", "3", "--max-sites", "3", "--epochs", "1", "--deadline", "20")
    with threaded(tmp_path, *settings) as made:
        proxy = BreakingProxy(made.address, 0.005)
        for name in names:
            made.site(name).write_card(replace(made.site(name).card(), address=proxy.address))
        made.start_server()
        made.join(dict.fromkeys(names, FleetConnection))
        made.wait()
        proxy.close()
        assert proxy.breaks > 0
        assert max(_uploads(made).values()) == 1
        # A round needs the answers of all three sites, and is repeated until it has them. The last federated update is
        # not: it may close without a site whose connection was broken off.
        missed = json.loads(made.folder.result.read_text())["without_last_update"]
        models, simulated = made.models(), made.simulated()
        updated = set(names).difference(missed)
        assert updated
        assert all(same({name: models[name]}, {name: simulated[name]}) for name in updated)


def _uploads(made: Federation) -> dict[tuple[int, str], int]:
    """Count the uploads of each site that were taken in each round that counted."""
    counted: dict[tuple[int, str], int] = {}
    taken = {played["round"]: played["answered"] for played in made.rounds()}
    slots = {site.name: site.slot for site in made.all()}
    state: dict[tuple[int, str], str] = {}
    for line in read_lines(made.folder.deliveries):
        if line["event"] == "received" and slots[line["from"]] in taken[line["round"]]:
            place = line["round"], line["from"]
            told = json.dumps(line["models"])
            counted[place] = counted.get(place, 0) + (state.get(place) != told)  # a round run again has the same
            state[place] = told
    return counted


def _simulated(made: Federation) -> dict[str, dict[str, Tensor]]:
    """Run the same rounds in one process, with the answers that were in, and those lost on the way."""
    config = made.folder.config()
    own = load_model(made.folder.model, config.seed)
    sites = sorted(made.all(), key=lambda site: site.slot)
    data = [load_own_data(made.site(s.name).data, None, s.name, config.seed, own) for s in sites]
    problem = FederatedProblem(own.model, own.initial, data, config.training, config.seed)
    algorithm = make_algorithm(config.method, config.options)
    worked = {site.slot: {line["round"] for line in read_lines(made.site(site.name).scores)} for site in sites}
    exchange, server = InProcess(problem, algorithm), federation_of(problem, algorithm)
    state: Any = algorithm.start_server(problem.start(config.rounds))
    for played in made.rounds():
        cohort = [slot for slot in range(len(sites)) if played["round"] in worked[slot]]
        exchange.unheard = set(cohort) - set(played["answered"])
        state = run_round(server, state, played["round"], cohort, exchange).state
    for slot, download in configure_clients(server, state, config.rounds, range(len(sites))).items():
        exchange.personalise(config.rounds, slot, download)
    network = problem.model_of(algorithm)
    return {site.name: network.state_dict(exchange.personalised[site.slot]) for site in sites}
