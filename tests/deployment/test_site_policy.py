"""A site decides what may be asked of it, and says so."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from fedfomo.cli.deploy import what_leaves
from fedfomo.deployment.settings import FederationFolder, SiteFolder
from fedfomo.deployment.site_policy import SitePolicy, read_policy
from fedfomo.errors import InputError
from in_memory_transport import make_federation, run_federation

ASKED = {"method": "fedfomo", "rounds": 20, "training": {"epochs": 5}, "peers": 3, "kind": "train"}
NOON = datetime(2026, 1, 1, 12, 0)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"methods": ("fedavg", "ditto")}, "refuses the method 'fedfomo': it takes part in fedavg, ditto"),
        ({"max_rounds": 19}, "refuses 20 rounds: 19 at most"),
        ({"max_epochs": 4}, "refuses 5 epochs a round: 4 at most"),
        ({"min_peers": 4}, "refuses a round with 3 other sites: 4 at least"),
        ({"hours": "20:00-06:00"}, "lets it train from 20:00 to 06:00, and here it is 12:00"),
        ({"hours": "08:00-12:00"}, "lets it train from 08:00 to 12:00, and here it is 12:00"),
    ],
)
def test_what_is_beyond_a_policy_is_refused_in_words(limits: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SitePolicy(**limits).check(ASKED, NOON)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"methods": ("fedfomo",), "max_rounds": 20, "max_epochs": 5, "min_peers": 3, "hours": "12:00-12:01"},
        {"hours": "11:00-06:00"},
    ],
)
def test_what_is_within_it_is_not(limits: dict[str, Any]) -> None:
    SitePolicy(**limits).check(ASKED, NOON)
    SitePolicy(hours="20:00-06:00").check({**ASKED, "kind": "finish"}, NOON)  # the last update trains nothing


@pytest.mark.parametrize("content", ['hours = "8-12"', "max_epochs = -1", "max_epoch = 3", 'methods = "fedfomo"'])
def test_a_policy_that_means_nothing_stops_the_site(tmp_path: Path, content: str) -> None:
    site = SiteFolder(tmp_path)
    site.policy.write_text(content)
    with pytest.raises(InputError):
        read_policy(site)


def _faults(folder: FederationFolder) -> list[dict[str, str]]:
    lines = (folder.server / "run" / "rounds.jsonl").read_text().splitlines()
    return [json.loads(line)["faults"] for line in lines]


def test_a_site_that_refuses_an_order_is_left_out_and_named(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    SiteFolder(folder.sites / "lyon").policy.write_text("min_peers = 3\n")
    run_federation(folder)
    slot = next(site.slot for site in folder.registry() if site.name == "lyon")
    words = "this site's policy refuses a round with 2 other sites: 3 at least"
    assert _faults(folder) == [{str(slot): words}] * 2
    assert not SiteFolder(folder.sites / "lyon").models.exists()


def test_scores_that_a_site_does_not_report_stay_there(tmp_path: Path) -> None:
    folder = make_federation(tmp_path)
    lyon = SiteFolder(folder.sites / "lyon")
    assert read_policy(lyon) == SitePolicy()  # the template refuses nothing
    lyon.policy.write_text("report_scores = false\n")
    run_federation(folder)
    slot = next(site.slot for site in folder.registry() if site.name == "lyon")
    for line in (folder.server / "run" / "rounds.jsonl").read_text().splitlines():
        told = json.loads(line)
        assert slot in told["answered"]
        assert str(slot) not in {**told["after_update"], **told["after_training"]}
    assert "lyon" not in json.loads(folder.result.read_text())["after_update"]
    assert lyon.scores.exists()
    assert "test scores" not in what_leaves(lyon)
    assert "test scores" in what_leaves(SiteFolder(folder.sites / "leeds"))
