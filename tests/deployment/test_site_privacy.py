"""A site's records are protected by the site: whatever the server asks, crashes or claims."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from federations import SITES, federation, kill, same, simulated
from fedfomo.cli.deploy import what_leaves
from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.privacy_ledger import load_ledger
from fedfomo.deployment.protocol import Envelope
from fedfomo.deployment.server_run import serve
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.errors import InputError
from fedfomo.io import write_atomically
from fedfomo.privacy.accountant import Query, epsilon_of
from fedfomo.privacy.engine import PrivacyEngine
from in_memory_transport import Loopback, honest, make_federation, models_of, run_federation

NOISE = 'mode = "deployment"\nnoise = 2.0\nbudget = 50.0\ndelta = 0.01\n'
OWN_AFFAIR = "its privacy settings, or its ledger, cannot be used; the site's log says why"
# Of twelve records, five are expected in each of three steps a round.
A_ROUND = {Query("training", 2.0, 5 / 12): 3}


def _site(folder: FederationFolder, name: str = "leeds") -> SiteFolder:
    return SiteFolder(folder.sites / name)


def _protect(folder: FederationFolder, settings: str = NOISE, name: str = "leeds") -> SiteFolder:
    site = _site(folder, name)
    site.privacy_settings.write_text(settings)
    return site


def _slot(folder: FederationFolder, name: str = "leeds") -> int:
    return next(site.slot for site in folder.registry() if site.name == name)


def _rounds(folder: FederationFolder) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder.server / "run" / "rounds.jsonl").read_text().splitlines()]


def _told(site: SiteFolder) -> list[str]:
    return json.loads(site.ledger.read_text())["spent"]


def test_without_settings_nothing_is_different(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    assert same(run_federation(folder), simulated(folder))
    assert _told(_site(folder)) == ["no guarantee: 3 answers left without noise"]  # two rounds, and the last update
    assert load_ledger(_site(folder))[1].queries == {}


def test_a_site_that_is_asked_for_the_first_time_at_the_very_end_goes_on_like_all_others(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1, participation=0.34)
    grid = Loopback(folder)
    serve(grid, folder)
    (drawn,) = _rounds(folder)[0]["cohort"]
    late = [name for name in SITES if _slot(folder, name) != drawn]
    assert [_told(_site(folder, name)) for name in late] == [["no guarantee: 1 answer left without noise"]] * 2
    for name in SITES:
        assert "models as they were trained" in what_leaves(_site(folder, name))
    folder.result.unlink()  # the ServerApp was killed before it was written
    serve(Loopback(folder), folder)
    assert json.loads(folder.result.read_text())["without_last_update"] == []


def test_an_answer_is_not_sent_again_without_a_bill_or_with_less_protection_than_now(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1)
    grid, site, server = Loopback(folder), _site(folder), MessageCipher.read(folder.server / "sealing.key")
    serve(grid, folder)
    order = next(order for name, order in grid.orders if name == "leeds")

    def again() -> Envelope:
        encrypted = grid.worker("leeds").handle(order)
        return Envelope.read(server.decrypt(_public_seal(folder), encrypted, Purpose.ANSWER))

    as_it_was = again()
    assert as_it_was.header["after_training"] is not None
    bill = site.ledger.read_bytes()
    site.ledger.unlink()
    assert again().header["fault"] == OWN_AFFAIR
    site.ledger.write_bytes(bill)
    _protect(folder)
    noisy = again()
    assert noisy.header["after_training"] is None
    assert not torch.equal(noisy.tensors["upload/model"], as_it_was.tensors["upload/model"])
    assert load_ledger(site)[1].queries[next(iter(A_ROUND))] == 3


def test_every_round_is_on_the_bill(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3)
    site = _protect(folder)
    run_federation(folder)
    bill = load_ledger(site)[1].queries
    assert {look: times for look, times in bill.items() if look.records == "training"} == {
        look: 3 * times for look, times in A_ROUND.items()
    }
    told = json.loads(site.ledger.read_text())["spent"]
    assert f"ε = {epsilon_of(bill, 'training', 0.01):.2f}" in told[0]
    assert "validation records: no guarantee" in told[0]
    assert site.ledger.stat().st_mode & 0o077 == 0


def test_noise_comes_from_nothing_that_the_server_knows(tmp_path: Path) -> None:
    uploads: list[torch.Tensor] = []
    for attempt in ("one", "other"):
        folder = make_federation(tmp_path / attempt, names=["leeds"], method="fedavg", rounds=1)
        _protect(folder)
        uploads.append(run_federation(folder)["leeds"]["0.weight"])
    assert not torch.equal(*uploads)


def test_scores_of_a_protected_site_stay_there(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    site = _protect(folder)
    run_federation(folder)
    slot = str(_slot(folder))
    for line in _rounds(folder):
        assert slot not in line["after_update"] | line["after_training"]
        assert len(line["after_update"]) == 2
        assert int(slot) in line["answered"]
    assert json.loads((site.models / "personalised.json").read_text())["score"]["metric"] >= 0


def test_an_answer_that_is_sent_again_is_not_paid_again(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1)
    site = _protect(folder)
    grid = Loopback(folder)
    serve(grid, folder)
    bill = site.ledger.read_bytes()
    order = next(order for name, order in grid.orders if name == "leeds")
    first, second = (grid.worker("leeds").handle(order) for _ in range(2))
    sealer, public = MessageCipher.read(folder.server / "sealing.key"), _public_seal(folder)
    assert sealer.decrypt(public, first, Purpose.ANSWER) == sealer.decrypt(public, second, Purpose.ANSWER)
    assert site.ledger.read_bytes() == bill


def test_a_round_whose_answer_is_lost_is_paid_again(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=1, method="fedavg")
    site = _protect(folder)
    grid = Loopback(folder)
    serve(grid, folder)
    for path in site.memory.glob("*-0*.parcel"):
        path.unlink()
    grid.worker("leeds").handle(next(order for name, order in grid.orders if name == "leeds"))
    assert load_ledger(site)[1].queries[next(iter(A_ROUND))] == 6


def test_the_bill_is_written_before_anything_else_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_federation(tmp_path, rounds=1, method="fedavg")
    site = _protect(folder)

    def full(path: Path, *content: bytes, **how: Any) -> None:
        if path == site.ledger:
            raise OSError(28, "No space left on device")
        write_atomically(path, *content, **how)

    monkeypatch.setattr("fedfomo.deployment.privacy_ledger.write_atomically", full)
    run_federation(folder)
    assert not list(site.memory.glob("answer-*"))
    assert not site.models.exists()
    assert _slot(folder) not in {int(slot) for line in _rounds(folder) for slot in line["after_update"]}


def test_who_has_spent_its_budget_falls_silent_and_keeps_its_model(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=4)
    two_rounds = epsilon_of({look: 2 * times for look, times in A_ROUND.items()}, "training", 0.01)
    site = _protect(folder, NOISE.replace("50.0", str(two_rounds + 1e-6)))
    uploads: dict[int, bool] = {}

    def listen(name: str, number: int, order: bytes, answer: Any) -> Any:
        encrypted = answer(order)
        if name == "leeds":
            server = MessageCipher.read(folder.server / "sealing.key")
            opened = server.decrypt(_public_seal(folder), encrypted, Purpose.ANSWER)
            envelope = Envelope.read(opened)
            uploads[envelope.header["round"]] = envelope.header["uploads"]
            assert envelope.header["uploads"] == bool(envelope.tensors)
        return encrypted

    models = run_federation(folder, listen)
    assert uploads == {0: True, 1: True, 2: False, 3: False, 4: False}
    assert epsilon_of(load_ledger(site)[1].queries, "training", 0.01) <= two_rounds + 1e-6
    assert math.isfinite(float(models["leeds"]["0.weight"].sum()))


def test_a_server_that_asks_for_more_gets_no_more_than_the_budget(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=2)
    site = _protect(folder, 'mode = "deployment"\nepsilon = 3.0\ndelta = 0.01\n')
    text = folder.settings.read_text()
    folder.settings.write_text(text.replace("epochs = 1", "epochs = 50").replace("rounds = 2", "rounds = 6"))
    run_federation(folder)
    assert epsilon_of(load_ledger(site)[1].queries, "training", 0.01) <= 3.0


def test_without_its_bill_nothing_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = make_federation(tmp_path)
    site = _protect(folder)
    site.ledger.write_text('{"looks": [')
    run_federation(folder)
    assert all(_slot(folder) not in line["answered"] for line in _rounds(folder))
    assert OWN_AFFAIR in _rounds(folder)[0]["faults"][str(_slot(folder))]
    assert "restore it, for without it nothing may leave" in caplog.text
    assert "leeds" not in models_of(folder)


@pytest.mark.parametrize("lost", [["ledger"], ["privacy_settings"], ["ledger", "privacy_settings"]])
def test_a_site_that_has_lost_its_settings_or_its_bill_sends_nothing_until_it_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, lost: list[str]
) -> None:
    folder = make_federation(tmp_path, rounds=3)
    site = _protect(folder)

    def lose(name: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 4:  # the first of the second round: the worker has answered before
            for path in (getattr(site, what) for what in lost):
                path.unlink()
        return answer(order)

    run_federation(folder, lose)
    slot = _slot(folder)
    assert [slot in line["answered"] for line in _rounds(folder)] == [True, False, False]
    assert _rounds(folder)[1]["faults"][str(slot)] == OWN_AFFAIR
    assert "restore it, or write off = true into" in caplog.text
    assert site.ledger.exists() == ("ledger" not in lost)
    with pytest.raises(InputError, match="restore it, or write off = true into"):
        what_leaves(site)


def test_a_site_that_says_off_goes_on_without_protection_and_its_bill_claims_none(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3)
    site = _protect(folder)

    def give_up(name: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 4:
            _protect(folder, "off = true\n")
        return answer(order)

    run_federation(folder, give_up)
    slot = str(_slot(folder))
    assert [slot in line["after_update"] for line in _rounds(folder)] == [False, True, True]
    assert _told(site) == ["no guarantee: 3 answers left without noise"]
    assert load_ledger(site)[1].queries[next(iter(A_ROUND))] == 3


def test_the_last_update_is_on_the_bill_too(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3, method="fedavg-finetuned")
    site = _protect(folder)

    def give_up(name: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 10:  # the first after three rounds of three sites
            _protect(folder, "off = true\n")
        return answer(order)

    run_federation(folder, give_up)
    assert "leeds" in json.loads(folder.result.read_text())["after_update"]
    assert _told(site) == ["no guarantee: 1 answer left without noise"]


def test_no_epsilon_is_claimed_that_leaves_unprotected_rounds_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_federation(tmp_path, rounds=3)
    site = _site(folder)

    def begin(name: str, number: int, order: bytes, answer: Any) -> Any:
        if number == 4:
            _protect(folder)
        return answer(order)

    run_federation(folder, begin)
    slot = str(_slot(folder))
    assert [slot in line["after_update"] for line in _rounds(folder)] == [True, False, False]
    assert _told(site) == ["no guarantee: 1 answer left without noise"]
    assert "no guarantee: 1 answer left without noise" in caplog.text
    assert load_ledger(site)[1].queries[next(iter(A_ROUND))] == 6
    assert "no guarantee: 1 answer left without noise" in what_leaves(site)
    assert "ε" not in what_leaves(site)


def test_a_site_that_dies_before_its_first_bill_has_lost_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_federation(tmp_path, rounds=1, method="fedavg")
    site = _protect(folder)
    grid = Loopback(folder)

    def killed(guard: PrivacyEngine, *_: Any) -> None:
        raise KeyboardInterrupt  # as good as any death: nothing catches it on the way

    with monkeypatch.context() as death:
        death.setattr(PrivacyEngine, "check", killed)
        with pytest.raises(KeyboardInterrupt):
            serve(grid, folder)
    assert not site.ledger.exists()
    order = next(order for name, order in grid.orders if name == "leeds")
    grid.worker("leeds").handle(order)
    assert load_ledger(site)[1].queries == A_ROUND


def test_the_server_is_not_told_what_is_wrong_with_a_sites_settings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_federation(tmp_path)
    _protect(folder, NOISE.replace("0.01", "0.2"))
    run_federation(folder)
    assert {line["faults"][str(_slot(folder))] for line in _rounds(folder)} == {OWN_AFFAIR}
    assert "12 training records" in caplog.text


@pytest.mark.deployment
def test_a_protected_site_pays_for_every_answer_in_real_processes_and_through_a_crash(tmp_path: Path) -> None:
    epochs = 2
    with federation(
        tmp_path, "--rounds", "8", "--min-clients", "2", "--max-sites", "3", "--epochs", str(epochs)
    ) as made:
        site = _protect(made.folder, NOISE.replace("0.01", "1e-4"))
        made.start_server()
        made.start_sites(*SITES)
        made.wait_for(lambda: site.ledger.exists() and made.rounds_done() >= 2)
        kill(made.pid("leeds", "resident_node"))
        made.wait()
        slot = _slot(made.folder)
        answered = sum(slot in line["answered"] for line in made.rounds())
        scores = {who for line in made.rounds() for who in line["after_update"] | line["after_training"]}
        bill = load_ledger(site)[1].queries
        (look,) = [look for look in bill if look.records == "training"]
        steps = epochs * math.ceil(1 / look.chance)
        assert bill[look] % steps == 0
        assert 2 <= answered <= bill[look] / steps <= answered + 1, made.told()  # one answer may have died on its way
        assert slot in made.rounds()[-1]["answered"], made.told()
        assert str(slot) not in scores
        assert len(scores) == len(SITES) - 1
        assert made.models().keys() == set(SITES)
    print(f"protected: {answered} answers of 8 rounds, {bill[look] // steps} paid for")  # noqa: T201


def test_a_method_that_reads_records_itself_is_refused_by_the_site(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, method="mocha-linear")
    for name in ("leeds", "turin", "lyon"):
        _protect(folder, name=name)
    faults: dict[str, str] = {}

    def listen(name: str, number: int, order: bytes, answer: Any) -> Any:
        encrypted = honest(name, number, order, answer)
        server = MessageCipher.read(folder.server / "sealing.key")
        opened = server.decrypt(_public_seal(folder, name), encrypted, Purpose.ANSWER)
        envelope = Envelope.read(opened)
        faults[name] = str(envelope.header.get("fault"))
        raise _EnoughError

    with pytest.raises(_EnoughError):
        run_federation(folder, listen)
    assert all("private examples" in fault for fault in faults.values())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ('noise = 1.0\nbudget = 8.0\nmode = "research"\n', "deployment"),
        ("noise = 1.0\nbudget = 8.0\n", "deployment"),
        ('mode = "deployment"\nnoise = 1.0\n', "budget"),
        ('mode = "deployment"\nnoise = -1.0\nbudget = 8.0\n', "noise"),
        ('mode = "deployment"\nepsilonn = 8.0\n', "epsilonn"),
        (NOISE + "off = true\n", "off = true, and gives a noise"),
    ],
)
def test_settings_that_would_only_look_like_protection_are_refused(
    tmp_path: Path, settings: str, complaint: str
) -> None:
    site = _protect(make_federation(tmp_path), settings)
    with pytest.raises(InputError, match=complaint):
        site.privacy()


class _EnoughError(Exception):
    pass


def _public_seal(folder: FederationFolder, name: str = "leeds") -> str:
    return next(site.seal for site in folder.registry() if site.name == name)
