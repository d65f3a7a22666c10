"""The process that does a site's work."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from fedfomo.deployment.encryption import MessageCipher, Purpose
from fedfomo.deployment.protocol import Envelope
from fedfomo.deployment.settings import SITE_VARIABLE, WORKER_VARIABLE, FederationFolder, SiteFolder
from fedfomo.deployment.worker_ipc import RefusedError, send
from in_memory_transport import MODEL, Answer, make_federation, run_federation

COUNTING = f"""
from pathlib import Path

with Path(__file__).with_name("loads").open("a") as file:
    file.write("loaded ")
{MODEL}"""


def test_a_site_loads_its_model_once_for_all_requests_and_again_when_the_file_changes(tmp_path: Path) -> None:
    folder = make_federation(tmp_path, rounds=3)
    plain = run_federation(FederationFolder(shutil.copytree(folder.path, tmp_path / "plain")))
    sites = [SiteFolder(folder.sites / name) for name in ("leeds", "turin")]
    for site in sites:
        site.model.write_text(COUNTING)
    asked: list[str] = []

    def changing(name: str, number: int, request: bytes, answer: Answer) -> Any:
        asked.append(name)
        if name == "turin" and asked.count(name) == 2:
            sites[1].model.write_text(f"{COUNTING}# changed\n")
        return answer(request)

    models = run_federation(folder, changing)
    assert asked.count("leeds") == asked.count("turin") == 4  # three rounds and the last update
    assert [(site.path / "loads").read_text().split() for site in sites] == [["loaded"], ["loaded"] * 2]
    for name, state in plain.items():
        assert all(torch.equal(models[name][key], tensor) for key, tensor in state.items())


def test_a_site_whose_model_file_is_changed_to_another_network_is_told_so(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    site = SiteFolder(folder.sites / "leeds")
    logged: list[str] = []

    def changing(name: str, number: int, request: bytes, answer: Answer) -> Any:
        if name == "leeds":
            logged.append(name)
            if len(logged) == 2:
                site.model.write_text(MODEL.replace("600", "500"))
        return answer(request)

    run_federation(folder, changing)
    assert len(logged) == 3
    kept = json.loads((site.models / "personalised.json").read_text())
    assert kept["round"] == 0  # nothing was done with the other network


def test_what_the_server_did_not_seal_is_logged_and_survived(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    site, stranger = SiteFolder(folder.sites / "leeds"), MessageCipher.read(folder.sites / "lyon" / "sealing.key")
    server, leeds = MessageCipher.read(folder.server / "sealing.key"), MessageCipher.read(site.seal).public_key
    order = Envelope({}, {}).to_bytes()
    with tempfile.TemporaryDirectory() as place:  # the names of sockets are short
        door = Path(place) / "worker"
        around = {**os.environ, SITE_VARIABLE: str(site.path), WORKER_VARIABLE: str(door)}
        worker = subprocess.Popen([sys.executable, "-m", "fedfomo.deployment.site_client"], env=around)
        try:
            for forged in (b"", b"no seal at all", stranger.encrypt(leeds, order, Purpose.REQUEST)):
                with pytest.raises(RefusedError, match="its log says why"):
                    send(door, forged, math.inf)
            answer = Envelope.read(
                server.decrypt(
                    leeds, send(door, server.encrypt(leeds, order, Purpose.REQUEST), math.inf), Purpose.ANSWER
                )
            )
            assert "federation" in answer.header["fault"]  # the worker read this one, and found it empty
            assert worker.poll() is None
        finally:
            worker.kill()
            worker.wait()
    assert (site.path / "site.log").read_text().count("a request is refused: it was not encrypted by its sender") == 3
