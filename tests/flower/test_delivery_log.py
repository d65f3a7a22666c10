from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from fedfomo.errors import InputError
from fedfomo.flower.delivery_log import DeliveryLog, Owners, fault_in


def _log(path: Path, lines: int = 30) -> list[str]:
    log = DeliveryLog(path)
    for number in range(lines):
        log.add({"event": "sent", "round": number // 3, "to": f"site-{number % 3}"})
    return path.read_text().splitlines()


def test_a_log_that_was_only_added_to_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    _log(path)
    _log(path)  # opened again
    assert fault_in(path) is None
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
        assert fault_in(path) is not None, (how, place)
    path.write_text("\n".join(lines) + "\n")
    assert fault_in(path) is None


def test_the_last_line_cannot_be_changed_either(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    lines = _log(path)
    path.write_text("\n".join([*lines[:-1], lines[-1].replace("site-2", "site-1")]) + "\n")
    assert fault_in(path) == "its last line is not the one that was written"


def test_a_line_that_a_crash_tore_is_dropped_and_tampering_stops_the_server(tmp_path: Path) -> None:
    path = tmp_path / "deliveries.jsonl"
    lines = _log(path)
    with path.open("a") as file:
        file.write('{"line": 30, "ev')
    DeliveryLog(path).add({"event": "sent"})
    assert fault_in(path) is None
    path.write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(InputError, match="tampered with: line 1 does not follow"):
        DeliveryLog(path)


def test_owners_are_known_as_long_as_their_models_may_be_sent_and_no_longer() -> None:
    owners = Owners()
    for number in range(100):
        owners.note("leeds", [f"leeds-{number}"])
        owners.note("turin", [f"turin-{number}", f"turin-{number}-b"])
    owners.note("leeds", ["leeds-99"])  # the round is played again
    assert owners.of({"a": "leeds-99", "b": "leeds-98", "c": "turin-99-b", "d": "an average"}) == {
        "a": "leeds",
        "b": "leeds",
        "c": "turin",
    }
    assert owners.of({"a": "leeds-97"}) == {}
