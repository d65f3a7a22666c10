from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from threading import Event, Thread

import pytest

from fedfomo.deployment.audit_log import DeliveryLog, ModelProvenance, begin_anew, examine, head_file_of
from fedfomo.deployment.server_run import serve
from fedfomo.deployment.status import sentences
from fedfomo.errors import InputError
from fedfomo.io import write_atomically
from in_memory_transport import Loopback, make_federation, run_federation


def _log(path: Path, lines: int = 30) -> list[str]:
    log = DeliveryLog(path)
    for number in range(lines):
        log.add({"event": "sent", "round": number // 3, "to": f"site-{number % 3}"})
    return path.read_text().splitlines()


def test_a_log_that_was_only_added_to_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    _log(path)
    _log(path)  # opened again
    assert examine(path)[1] is None
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["line"] for record in records] == list(range(60))


@pytest.mark.parametrize("how", ["alter", "remove", "swap", "repeat", "cut"])
def test_every_tampering_is_found(tmp_path: Path, how: str) -> None:
    path = tmp_path / "deliveries.jsonl"
    lines = _log(path)
    rng = random.Random(0)  # noqa: S311
    for _ in range(200):
        place = rng.randrange(len(lines) - 1)
        changed = list(lines)
        if how == "alter":
            letter = rng.randrange(len(changed[place]))
            new = "x" if changed[place][letter] != "x" else "y"
            changed[place] = changed[place][:letter] + new + changed[place][letter + 1 :]
        elif how == "remove":
            del changed[place]
        elif how == "swap":
            changed[place], changed[place + 1] = changed[place + 1], changed[place]
        elif how == "repeat":
            changed.insert(place, changed[place])
        else:
            changed = changed[: place + 1]
        path.write_text("\n".join(changed) + "\n")
        assert examine(path)[1] is not None, (how, place)
    path.write_text("\n".join(lines) + "\n")
    assert examine(path)[1] is None


def test_the_last_line_cannot_be_changed_either(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    lines = _log(path)
    path.write_text("\n".join([*lines[:-1], lines[-1].replace("site-2", "site-1")]) + "\n")
    assert examine(path)[1] == "line 30 is not the one that was written"


def test_a_line_that_a_crash_tore_is_dropped_and_tampering_stops_the_server(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    lines = _log(path)
    with path.open("a") as file:
        file.write('{"line": 30, "ev')
    DeliveryLog(path).add({"event": "sent"})
    assert examine(path)[1] is None
    path.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(InputError, match="tampered with: line 1 does not follow"):
        DeliveryLog(path)


def test_lines_that_are_cut_off_while_the_server_is_down_stop_its_start(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    lines = _log(path)
    path.write_text("\n".join(lines[:2]) + "\n")
    cut = path.read_bytes()
    with pytest.raises(InputError, match=r"it has 2 lines, of 30 that were written; find out why, then .*--new-log"):
        DeliveryLog(path)
    assert path.read_bytes() == cut
    aside = begin_anew(path)  # as it says
    assert aside is not None
    assert aside.read_bytes() == cut
    _log(path)
    assert examine(path)[1] is None


def test_a_log_that_is_gone_is_missed(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    _log(path)
    path.unlink()
    assert examine(path)[1] == "it is gone, and 30 lines were written"
    with pytest.raises(InputError, match="it is gone, and 30 lines were written"):
        DeliveryLog(path)


def test_a_log_that_is_gone_with_its_head_is_missed_once_a_round_is_complete(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    assert examine(folder.deliveries, folder.has_run)[1] is None
    run_federation(folder)
    folder.deliveries.unlink()
    head_file_of(folder.deliveries).unlink()
    gone = "it is gone, and deliveries.head with it, though rounds were run"
    assert f"delivery log: 0 lines, TAMPERED WITH: {gone}" in list(sentences(folder))
    with pytest.raises(InputError, match=gone):
        serve(Loopback(folder), folder)
    assert begin_anew(folder.deliveries) is None
    serve(Loopback(folder), folder)
    assert examine(folder.deliveries, folder.has_run)[1] is None


@pytest.mark.parametrize("more", [0, 1, 2])
def test_a_chain_that_was_made_anew_is_found_whatever_is_added_to_it(tmp_path: Path, more: int) -> None:
    path, forged = tmp_path / "deliveries.jsonl", tmp_path / "forged.jsonl"
    _log(path)
    forgery = DeliveryLog(forged)
    for number in range(30 + more):
        forgery.add({"event": "sent", "round": number // 3, "to": "nobody"})
    path.write_bytes(forged.read_bytes())
    assert examine(path)[1] == "line 30 is not the one that was written"


def test_more_lines_than_a_crash_leaves_unwitnessed_are_a_forgery(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    _log(path, 4)
    witness = head_file_of(path).read_bytes()
    _log(path, 2)
    head_file_of(path).write_bytes(witness)
    assert examine(path)[1] == "it has 6 lines, and 4 were written"
    head_file_of(path).unlink()
    assert examine(path)[1] == "it has 6 lines, and 0 were written"


@pytest.mark.parametrize("call", [1, 2, 3])
def test_deaths_before_and_after_a_line_one_after_the_other_are_no_tampering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    path = tmp_path / "deliveries.jsonl"
    for _ in range(3):
        log, calls = DeliveryLog(path), count(1)

        def witness(place: Path, content: bytes, calls: Iterator[int] = calls) -> None:
            if next(calls) == call:  # 1: before the line is announced, 2: when it is on disk, 3: never
                raise KeyboardInterrupt
            write_atomically(place, content)

        with monkeypatch.context() as death:
            death.setattr("fedfomo.deployment.audit_log.write_atomically", witness)
            with pytest.raises(KeyboardInterrupt) if call < 3 else nullcontext():
                log.add({"event": "sent"})
        assert examine(path)[1] is None
    _log(path)
    assert len(path.read_text().splitlines()) == (30 if call == 1 else 33)


@pytest.mark.parametrize("lines", [0, 5])
def test_a_death_between_the_announcement_of_a_line_and_the_line_is_no_tampering(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    path = tmp_path / "deliveries.jsonl"
    if lines:
        _log(path, lines)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    log = DeliveryLog(path)
    with monkeypatch.context() as death:
        death.setattr("pathlib.Path.open", killed)
        with pytest.raises(KeyboardInterrupt):
            log.add({"event": "sent"})
    assert examine(path)[1] is None
    assert len(_log(path, 1)) == lines + 1


def test_a_single_line_that_somebody_adds_is_found(tmp_path: Path) -> None:
    path, longer = tmp_path / "deliveries.jsonl", tmp_path / "longer.jsonl"
    _log(path, 3)
    for copied in (path, head_file_of(path)):
        shutil.copy(copied, copied.with_name(copied.name.replace("deliveries", "longer")))
    DeliveryLog(longer).add({"event": "sent", "to": "nobody"})
    path.write_bytes(longer.read_bytes())
    assert examine(path)[1] == "it has 4 lines, and 3 were written"
    with pytest.raises(InputError, match="it has 4 lines, and 3 were written"):
        DeliveryLog(path)


def test_status_while_the_server_writes_is_no_tampering(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    log = DeliveryLog(path)
    is_over = Event()

    def write() -> None:
        while not is_over.is_set():
            log.add({"event": "sent", "to": "x" * 20_000})

    writer = Thread(target=write)
    writer.start()
    try:
        assert {examine(path)[1] for _ in range(100)} == {None}
    finally:
        is_over.set()
        writer.join()


def test_owners_are_known_as_long_as_their_models_may_be_sent_and_no_longer() -> None:
    owners = ModelProvenance()
    for number in range(100):
        owners.note("leeds", [f"leeds-{number}"])
        owners.note("turin", [f"turin-{number}", f"turin-{number}-b"])
    owners.note("leeds", ["leeds-99"])  # the round is run again
    assert owners.of({"a": "leeds-99", "b": "leeds-98", "c": "turin-99-b", "d": "an average"}) == {
        "a": "leeds",
        "b": "leeds",
        "c": "turin",
    }
    assert owners.of({"a": "leeds-97"}) == {}


def test_a_model_is_of_whoever_uploaded_it_first_until_nobody_has_it_any_more() -> None:
    owners = ModelProvenance()
    owners.note("leeds", ["a model"])
    owners.note("lyon", ["a model", "a model"])
    assert owners.of({"x": "a model"}) == {"x": "leeds"}
    for number in range(2):
        owners.note("lyon", [f"lyon-{number}"])
    assert owners.of({"x": "a model"}) == {"x": "leeds"}
    owners.note("leeds", ["another", "a model"])
    owners.note("leeds", ["a third"])
    assert owners.of({"x": "a model"}) == {"x": "leeds"}
    owners.note("leeds", ["a fourth"])
    assert owners.of({"x": "a model"}) == {}


def test_a_thief_does_not_inherit_what_its_owner_has_moved_on_from() -> None:
    owners = ModelProvenance()
    owners.note("leeds", ["a model"])
    owners.note("lyon", ["a model"])
    for number in range(2):
        owners.note("leeds", [f"leeds-{number}"])
    assert owners.of({"x": "a model"}) == {"x": "leeds"}
    for number in range(2):
        owners.note("lyon", [f"lyon-{number}"])
    assert owners.of({"x": "a model"}) == {}
