"""A server that has too few sites says for whom it waits."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fedfomo.deployment import server_run
from fedfomo.deployment.status import facts, sentences
from in_memory_transport import Loopback, make_federation, serve


def test_whoever_comes_while_the_server_waits_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, told, problems = make_federation(tmp_path, min_clients=3), list[str](), list[str]()
    monkeypatch.setattr(server_run, "POLL", 0.01)

    class Late(Loopback):
        """One more site is there at every fifth look, and one leaves after the first round."""

        looks = 0

        def get_nodes(self) -> Iterable[Any]:
            self.looks += 1
            self.away = set(["turin", "lyon"][self.looks // 5 :])
            if folder.status.exists():
                told.extend(line for line in sentences(folder) if "rounds are complete" in line)
                with monkeypatch.context() as later:
                    now = json.loads(folder.status.read_bytes())["since"]
                    later.setattr("time.time", lambda: now + 1000)
                    problems.extend(facts(folder)["problems"])
            return super().get_nodes()

    serve(Late(folder), folder)
    words = "0 of 2 rounds are complete; {} of 3 sites are on line, and a round takes 3; waiting for {}"
    waiting = [line for line in dict.fromkeys(told) if "waiting" in line]
    assert waiting == [words.format(1, "turin, lyon"), words.format(2, "lyon")]
    assert any("when it did, 2 of 3 sites are on line, and a round takes 3" in problem for problem in problems)
