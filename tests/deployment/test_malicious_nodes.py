"""Registered sites that withhold, drip, break off or overfill their answers, on a real SuperLink: others play on."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from federations import same
from fedfomo.deployment.fleet_connection import FleetConnection
from fedfomo.deployment.flower_records import CONTENT
from real_server import ThreadedFederation, threaded

pytestmark = pytest.mark.deployment

DEADLINE = 8
SETTINGS = (
    "--rounds",
    "2",
    "--max-sites",
    "3",
    "--epochs",
    "1",
    "--deadline",
    str(DEADLINE),
    "--startup-timeout",
    "60",
)


class _Silent(FleetConnection):
    """Takes requests and says nothing: what the others compute then is the measure of all the rest."""

    def send(self, reply: Any, seconds: float) -> None:
        pass


class _Withholding(FleetConnection):
    """Announces an answer and keeps one piece of it."""

    def push(self, run: int, session: str, pieces: dict[str, Any], wanted: set[str]) -> None:
        super().push(run, session, pieces, wanted - {sorted(wanted)[0]})


class _Dripping(FleetConnection):
    """Sends a piece now and then, which keeps the upload open in Flower's eyes."""

    stop: ClassVar[threading.Event] = threading.Event()

    def push(self, run: int, session: str, pieces: dict[str, Any], wanted: set[str]) -> None:
        threading.Thread(target=self._drip, args=(run, session, pieces, wanted), daemon=True).start()

    def _drip(self, run: int, session: str, pieces: dict[str, Any], wanted: set[str]) -> None:
        for name in sorted(wanted):
            self.stop.wait(0.8 * DEADLINE)
            if not self.stop.is_set():
                super().push(run, session, dict(pieces), {name})


class _Dying(FleetConnection):
    """Dies in the midst of its first upload: nothing more is heard of it, no heartbeat either."""

    def push(self, run: int, session: str, pieces: dict[str, Any], wanted: set[str]) -> None:
        super().push(run, session, pieces, set(sorted(wanted)[1:]))
        self._heartbeat.stop()
        threading.Event().wait(60)


class _Overfilling(FleetConnection):
    """Announces an answer of very many pieces."""

    def announce(self, reply: Any, tree: Any, seconds: float) -> tuple[str, set[str]]:
        for number in range(200):
            tree.children.add(object_id=f"{number:064x}")
        return super().announce(reply, tree, seconds)


class _Huge(FleetConnection):
    """Answers with one piece of 60 MB, of which no word is true."""

    def send(self, reply: Any, seconds: float) -> None:
        reply.content.config_records[CONTENT][CONTENT] = b"x" * 60_000_000
        super().send(reply, seconds)


def _play(place: Path, kind: type[FleetConnection]) -> tuple[ThreadedFederation, dict[str, dict[str, Tensor]]]:
    torch.set_num_threads(1)
    with threaded(place, *SETTINGS) as made:
        registry = made.folder.registry()
        slots = {"leeds": 0, "turin": 1, "lyon": 2}  # the same in every test, so that models can be compared
        made.folder.write_registry("f" * 32, [replace(site, slot=slots[site.name]) for site in registry])
        for site in registry:
            card = made.site(site.name).card()
            made.site(site.name).write_card(replace(card, federation="f" * 32))
        made.start_server()
        made.join({"leeds": FleetConnection, "turin": FleetConnection, "lyon": kind})
        began = time.monotonic()
        made.wait()
        assert time.monotonic() - began < 60 + 3 * (DEADLINE + 15)
        models = {name: load_file(made.site(name).models / "personalised.safetensors") for name in ("leeds", "turin")}
    return made, models


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """Return the models of the honest sites when the third is silent."""
    made, models = _play(tmp_path_factory.mktemp("silent"), _Silent)
    assert [played["faults"] for played in made.rounds()] == [{"2": f"no answer within {DEADLINE} s"}] * 2
    return models


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (_Withholding, "its answer was announced, and"),
        (_Dripping, "its answer was announced, and"),
        (_Dying, "its answer was announced, and"),
        (_Overfilling, "pieces, more than"),
        (_Huge, "more than"),
    ],
)
def test_a_node_that_misbehaves_costs_nobody_else_anything(
    tmp_path: Path, kind: type[FleetConnection], fault: str, without: dict[str, dict[str, Tensor]]
) -> None:
    try:
        made, models = _play(tmp_path, kind)
    finally:
        _Dripping.stop.set()
    for played in made.rounds():
        assert sorted(played["answered"]) == [0, 1], made.told()
        assert list(played["faults"]) == ["2"]
    assert fault in made.rounds()[0]["faults"]["2"], made.rounds()
    assert same(models, without)
