"""From what the server of a real federation knows to what a report is made from.

The server has no data and no final models: scores are what sites reported, and of the affinity it has the last state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from fedfomo.core.metrics import Score, renamed
from fedfomo.deployment.allowed_methods import make_method
from fedfomo.deployment.settings import FederationFolder, Site
from fedfomo.errors import listed, require
from fedfomo.io import read_json, read_lines
from fedfomo.report.data import ClientFacts, FinalResult, PrivacyFacts, ReportInput, Reproduce
from fedfomo.runs.config import label_of

ADVICE = (
    "No score of training alone is known here. Whether federating pays, each site finds out for itself:"
    " `fedfomo deploy site NAME --alone` trains alone beside the federation, and reports it at the site."
)


def load_federation(folder: FederationFolder) -> ReportInput:
    """Collect what the server knows of all sites, also of those that have left."""
    settings = folder.experiment_settings if folder.experiment else folder.settings
    config, sites = folder.config(), sorted(folder.registry(), key=lambda site: site.slot)
    numbers = {site.slot: number for number, site in enumerate(sites)}
    lines = [_line(line, numbers) for line in read_lines(folder.run / "rounds.jsonl")]
    require(bool(lines), f"no round of {folder.path} is complete yet: `fedfomo deploy status` says how far it is")
    is_finished = folder.result.exists()
    result = read_json(folder.result, "the sites have their models nevertheless") if is_finished else {}
    scores = {number: _score(result.get("after_update", {}).get(site.name)) for number, site in enumerate(sites)}
    tested = {number: score.num_examples for number, score in scores.items()}
    for line in lines:
        reported = line["after_update"].items()
        tested |= {int(client): score["num_examples"] for client, score in reported if not tested[int(client)]}
    affinity: list[list[float]] | None = result.get("affinity")
    names = [site.name for site in sites]
    title = f"Experiment {folder.experiment} in a federation" if folder.experiment else "Federation"
    return ReportInput(
        title=f"{title} of {len(names)} sites: {listed(names)}",
        method=label_of(config.method),
        algorithm=make_method(config.method, config.options),
        seed=config.seed,
        rounds_planned=config.rounds,
        clients=[ClientFacts(name, None, None, tested[number]) for number, name in enumerate(names)],
        lines=lines,
        seconds={},
        ended={label_of(config.method): _ended(scores, result)} if is_finished else {},
        affinity=None if affinity is None else [[affinity[one.slot][other.slot] for other in sites] for one in sites],
        mixing=None,
        own_targets=False,
        reproduce=Reproduce("", settings.read_text(), {}, {"fedfomo": version("fedfomo")}),
        metric="score reported by the sites",
        word="site",
        data="Each site's own.",
        is_simulated=False,
        notes=[*_notes(sites, lines, result)],
        advice=ADVICE,
        privacy=PrivacyFacts(None, None, None),
    )


def _line(line: Mapping[str, Any], numbers: Mapping[int, int]) -> dict[str, Any]:
    """Write a line of the server's log as runs have it, with sites by number in place of their slots."""
    named, scored = ("refused", "suspected"), ("after_update", "after_training")
    return {
        "round": line["round"],
        "cohort": [numbers[slot] for slot in line["cohort"]],
        "uploads": {str(numbers[slot]): {} for slot in line["answered"]},
        "traffic": {"models_down": None, "bytes_down": line["bytes_sent"], "bytes_up": line["bytes_received"]},
        **{part: {str(numbers[int(slot)]): value for slot, value in line[part].items()} for part in named},
        **{part: {str(numbers[int(slot)]): renamed(told) for slot, told in line[part].items()} for part in scored},
    }


def _score(reported: Mapping[str, Any] | None) -> Score:
    return Score(math.nan, math.nan, 0) if reported is None else Score.from_dict(reported)


def _ended(scores: Mapping[int, Score], result: Mapping[str, Any]) -> FinalResult:
    bytes_moved = result["traffic"]["bytes_down"] + result["traffic"]["bytes_up"]
    is_of_sets = bool(result.get("is_of_sets"))  # older servers do not say it
    return FinalResult(scores, bytes_moved, gradients=0, examples=None, is_of_sets=is_of_sets)


def _notes(sites: Sequence[Site], lines: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> list[str]:
    notes = ["Scores are what sites reported: nobody else has their test examples, and nobody can check them."]
    if not result:
        notes.append(f"The federation is not finished: {len(lines)} rounds are complete.")
    left = [site.name for site in sites if site.has_left]
    if left:
        notes.append(f"Have left: {', '.join(left)}.")
    missing = result.get("without_last_update", [])
    if missing:
        notes.append(f"Have the model of their last round, since they were not there at the end: {', '.join(missing)}.")
    return notes
