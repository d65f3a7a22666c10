"""A site that leaves, or is made to, is asked nothing any more and stops nobody."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509

from cli_calls import refused
from federations import SITES, federation, fedfomo
from fedfomo.algorithms import make_algorithm
from fedfomo.algorithms.fedfomo import FedFomoAsCoded
from fedfomo.algorithms.fedfomo.as_coded import State
from fedfomo.core.rng import stream
from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.protocol import Envelope
from fedfomo.deployment.provisioning import add_site, remove_site
from fedfomo.deployment.renewal import renew_server, renew_site
from fedfomo.deployment.server_process import ServerProcess
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.deployment.status import facts, sentences
from fedfomo.deployment.superlink_control import ControlError
from fedfomo.errors import InputError
from fedfomo.runs.config_io import write_toml
from in_memory_transport import Loopback, make_federation, models_of, serve
from toy_problems import points_problem

LATEST = {"availability": "latest", "epsilon": 1.0, "num_averages": 0}


def _slot(folder: FederationFolder, name: str) -> int:
    return next(site.slot for site in folder.registry() if site.name == name)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("method", ["fedfomo", "fedavg"])
def test_who_has_left_is_asked_nothing_from_the_next_round_on(tmp_path: Path, method: str) -> None:
    folder = make_federation(tmp_path, rounds=3, method=method)

    def leave(site: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 2:  # in the first round
            remove_site(folder, "lyon")
        return answer(order)

    grid = Loopback(folder, leave)  # where Lyon stays on line
    serve(grid, folder)
    assert [site for site, _ in grid.orders].count("lyon") == 1
    slot = _slot(folder, "lyon")
    played = _lines(folder.server / "run" / "rounds.jsonl")
    assert [slot in line["cohort"] for line in played] == [True, False, False]
    result = json.loads(folder.result.read_text())
    assert result["left"] == ["lyon"]
    assert result["without_last_update"] == []
    assert result["sites"]["lyon"] == slot
    assert models_of(folder).keys() >= {"leeds", "turin"}
    told = list(sentences(folder))
    assert "lyon: has left" in told
    assert ", 2 of up to 3 sites," in told[0]


def test_no_model_of_who_has_left_is_sent_again(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=4, method="fedfomo-as-coded", options=LATEST)

    def leave(site: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 5:  # in the second round, in which Lyon's first model is sent
            remove_site(folder, "lyon")
        return answer(order)

    serve(Loopback(folder, leave), folder)
    sent = [line for line in _lines(folder.deliveries) if line["event"] == "sent"]
    of_lyon = [line["round"] for line in sent if "lyon" in line["of"].values()]
    assert set(of_lyon) == {1}


def test_a_state_keeps_the_models_of_those_who_stay() -> None:
    coded = FedFomoAsCoded(availability="latest")
    start = State.start(4)
    models = {client: torch.full((2,), float(client)) for client in (0, 1, 3)}
    state = State(2, models, torch.tensor([1, 3]), start.affinity, start.taken, (models[3],))
    left = coded.forget_clients(state, {0, 1, 2})
    assert left.models.keys() == {0, 1}
    assert left.last_uploaders.tolist() == [1]
    assert coded.available(left, 0, stream(0)).tolist() == [1]
    assert left.averages == ()  # one of a single client is that client's model
    assert coded.forget_clients(state, range(4)) is state
    assert make_algorithm("fedavg").forget_clients("another method's", {0}) == "another method's"


@pytest.mark.parametrize("method", ["cfl", "fl-hc"])
def test_nobody_is_clustered_by_or_waits_for_who_has_left(method: str) -> None:
    start = points_problem().start(10)
    updates = {client: torch.ones(start.layout.num_trainable) for client in (0, 1)}
    algorithm = make_algorithm(method)
    state = replace(algorithm.start_server(start), updates=updates)
    left = algorithm.forget_clients(state, set(range(1, start.num_clients)))
    assert left.awaited.tolist() == list(range(1, start.num_clients))
    assert left.updates.keys() == {1}


def test_no_model_of_who_left_while_the_server_waited_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_federation(tmp_path, rounds=2, min_clients=2, method="fedfomo-as-coded", options=LATEST)

    def lose(site: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 3:  # the last of the first round
            grid.away |= {"turin", "lyon"}
        return answer(order)

    def wait(_: float) -> None:
        if grid.away:
            remove_site(folder, "lyon")
            grid.away.clear()

    grid = Loopback(folder, lose)
    monkeypatch.setattr("fedfomo.deployment.server_run.time.sleep", wait)
    serve(grid, folder)
    sent = [line for line in _lines(folder.deliveries) if line["event"] == "sent"]
    assert [line["to"] for line in sent].count("turin") == 3
    assert not any("lyon" in line["of"].values() for line in sent)


def test_a_site_that_was_struck_from_the_registry_by_hand_stops_nobody(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3)
    lyon, server = (
        MessageCipher.read(SiteFolder(folder.sites / "lyon").seal),
        MessageCipher.read(folder.server / "sealing.key"),
    )
    slot = _slot(folder, "lyon")

    def forge_and_die(site: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 4:  # the first of the second round
            raise KeyboardInterrupt
        if site != "lyon":
            return answer(order)
        given = Envelope.read(server.decrypt(lyon.public_key, answer(order), Purpose.ANSWER))
        refused = Envelope(given.header, {**given.tensors, "upload/more": torch.zeros(1)})
        return lyon.encrypt(server.public_key, refused.to_bytes(), Purpose.ANSWER)

    with pytest.raises(KeyboardInterrupt):
        serve(Loopback(folder, forge_and_die), folder)
    folder.write_registry(folder.identity(), [site for site in folder.registry() if site.name != "lyon"])
    serve(Loopback(folder), folder)
    result = json.loads(folder.result.read_text())
    assert result["refusals"] == {f"site {slot}": 1}
    assert result["sites"].keys() == {"leeds", "turin"}


def test_neither_slot_nor_name_of_who_has_left_is_anybody_elses(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, max_sites=4)
    slot = _slot(folder, "lyon")
    assert [site.name for site in remove_site(folder, "lyon")] == ["leeds", "turin"]
    add_site(folder, "porto")
    assert _slot(folder, "porto") != slot
    with pytest.raises(InputError, match="was made for 4 sites"):
        add_site(folder, "paris")
    with pytest.raises(InputError, match="'lyon' exists already"):
        add_site(folder, "lyon")
    with pytest.raises(InputError, match="'lyon' has left already"):
        remove_site(folder, "lyon")
    with pytest.raises(InputError, match="unknown site 'turim': did you mean 'turin'"):
        remove_site(folder, "turim")


def test_the_command_says_what_comes_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(tmp_path / "federation")
    fedfomo("init", "--sites", "leeds,turin", "--folder", place)
    assert "unknown site 'lyon'" in refused(capsys, "deploy", "remove-site", "lyon", "--folder", place)
    told = fedfomo("remove-site", "turin", "--folder", place)
    assert "turin has left: a running server asks it nothing from the next round on" in told
    assert "turin: has left" in fedfomo("status", place)


def test_the_superlink_is_told_who_has_left_and_again_if_it_did_not_hear(tmp_path: Path) -> None:
    folder, told = make_federation(tmp_path), list[str]()
    server = _Server(folder, told.append)
    server.look()
    assert server.asked == [("register", name) for name in SITES]
    remove_site(folder, "lyon")
    server.look()
    assert len(server.asked) == 3  # its answer in the round that is under way still counts
    server.run(1)
    server.is_deaf = True
    server.look()
    server.look()
    assert server.asked[3:] == [("unregister", "lyon")]
    assert len(told) == 1
    assert "lyon has left, and the SuperLink lets it in still" in told[0]
    server.is_deaf = False
    server.wait()
    server.look()
    server.look()
    assert server.asked[3:] == [("unregister", "lyon")] * 2


def test_old_keys_are_turned_away_once_a_site_has_new_ones(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    server = _Server(folder, print)
    server.look()
    before = {site.name: site for site in folder.registry()}
    place = SiteFolder(renew_site(folder, "lyon"))
    after = {site.name: site for site in folder.registry()}
    assert {name for name in SITES if before[name] != after[name]} == {"lyon"}
    assert (after["lyon"].slot, after["lyon"].name) == (before["lyon"].slot, "lyon")
    assert MessageCipher.read(place.seal).public_key == after["lyon"].seal != before["lyon"].seal
    assert place.card() == SiteFolder(folder.sites / "lyon").card()
    server.look()
    server.look()
    assert server.asked[3:] == [("unregister", "lyon"), ("register", "lyon")]
    for name in ("authentication.key", "sealing.key", "site.json", "ca.crt"):  # as the command says
        shutil.copy(place.path / name, folder.sites / "lyon" / name)
    serve(Loopback(folder), folder)
    assert models_of(folder).keys() == set(SITES)


def test_the_server_gets_a_certificate_for_an_address_that_it_has_moved_to(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    old = (folder.server / "server.crt").read_bytes()
    folder.settings.write_text(write_toml(replace(folder.config(), address="new.example.org:8443")))
    renew_server(folder)
    server = x509.load_pem_x509_certificate((folder.server / "server.crt").read_bytes())
    server.verify_directly_issued_by(x509.load_pem_x509_certificate((folder.server / "ca.crt").read_bytes()))
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "new.example.org" in names.get_values_for_type(x509.DNSName)
    assert (folder.server / "server.crt").read_bytes() != old
    assert "server_name new.example.org;" in (folder.operations / "nginx.conf").read_text()
    (folder.authority / "ca.key").unlink()
    with pytest.raises(InputError, match=r"ca\.key is not there: put it back"):
        renew_server(folder)


def test_a_certificate_that_ends_soon_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_federation(tmp_path)
    assert facts(folder)["problems"] == []
    monkeypatch.setattr("fedfomo.deployment.provisioning.YEARS", 0.1)
    renew_server(folder)
    (problem,) = facts(folder)["problems"]
    assert problem.startswith("server.crt ends on ")


def test_a_superlink_that_complains_and_turns_the_site_away_all_the_same_is_not_asked_again(tmp_path: Path) -> None:
    server, told = _left_by_lyon(tmp_path)
    server.is_deaf, server.status = True, "unregistered"
    server.look()
    server.wait()
    server.look()
    assert server.asked[3:] == [("unregister", "lyon")]
    assert told == []


def test_a_superlink_that_answers_nothing_ends_no_server(tmp_path: Path) -> None:
    server, told = _left_by_lyon(tmp_path)
    server.is_deaf, server.status = True, None
    server.look()
    assert "lyon has left, and the SuperLink lets it in still" in told[0]


def _left_by_lyon(place: Path) -> tuple[_Server, list[str]]:
    """Return a server that Lyon left in a round that is over, and where it tells what happens."""
    folder, told = make_federation(place), list[str]()
    server = _Server(folder, told.append)
    server.look()
    remove_site(folder, "lyon")
    server.look()
    server.run(1)
    return server, told


class _Server(ServerProcess):
    """The server's supervisor, before a SuperLink that only takes down what it is asked."""

    def __init__(self, folder: FederationFolder, tell: Any) -> None:
        super().__init__(folder, tell)
        self.asked: list[tuple[str, str]] = []
        self.is_deaf = False
        self.status: str | None = "online"  # None: it answers nothing
        self._log.close()

    def look(self) -> None:
        self._register()

    def run(self, rounds: int) -> None:
        self._folder.status.write_text(json.dumps({"rounds_done": rounds}))

    def wait(self) -> None:
        self._overdue = dict.fromkeys(self._overdue, 0.0)

    def _superlink(self) -> Any:
        return self

    def register(self, key: str) -> int:
        (site,) = [site for site in self._folder.registry() if site.key == key]
        self.asked.append(("register", site.name))
        return 10 + SITES.index(site.name)

    def unregister(self, node: int) -> None:
        self.asked.append(("unregister", SITES[node - 10]))
        if self.is_deaf:
            raise ControlError("no")

    def lets_in(self, node: int) -> bool:
        if self.status is None:
            raise ControlError("no")
        return self.status != "unregistered"


@pytest.mark.deployment
def test_a_site_leaves_while_the_federation_runs(tmp_path: Path) -> None:
    settings = ("--startup-timeout", "25", "--rounds", "40", "--min-clients", "2", "--max-sites", "4", "--epochs", "1")
    with federation(tmp_path, *settings, sites=(*SITES, "porto")) as made:
        made.start_server()
        made.start_sites(*SITES)  # Porto is never on line
        made.wait_for(lambda: made.rounds_done() >= 1)
        for name in ("lyon", "porto"):
            fedfomo("remove-site", name, "--folder", str(made.folder.path))
        made.wait()
        slot = _slot(made.folder, "lyon")
        answered = [slot in played["answered"] for played in made.rounds()]
        assert answered[0]
        assert not answered[-1], made.told()
        assert answered == sorted(answered, reverse=True)  # once it has left, it stays away
        result = json.loads(made.folder.result.read_text())
        assert result["left"] == ["lyon", "porto"]
        assert result["without_last_update"] == []
        assert "lets it in still" not in made.told()
        assert "the ServerApp died" not in made.told()
