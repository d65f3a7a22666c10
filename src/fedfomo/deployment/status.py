"""How far a federation is, in sentences."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from fedfomo.core.metrics import Score
from fedfomo.deployment.audit_log import examine
from fedfomo.deployment.renewal import expiring
from fedfomo.deployment.settings import FIRST, FederationFolder
from fedfomo.errors import listed
from fedfomo.io import printable, read_json

LOST = "it is written anew after the next round"
PATIENCE = 60.0  # seconds beyond all deadlines before a federation counts as stalled


def sentences(folder: FederationFolder) -> Iterator[str]:
    """Tell progress, absences, refusals, results, and whether the delivery log is whole."""
    config, sites = folder.config(), folder.members()
    if folder.experiment:
        yield f"experiment '{folder.experiment}'"
    yield f"{config.method}, {config.rounds} rounds, {len(sites)} of up to {config.max_sites} sites, {config.bits} bits"
    for site in folder.registry():
        if site.has_left:
            yield f"{site.name}: has left"
    if folder.status.exists():
        yield from _progress(read_json(folder.status, LOST))
    else:
        yield "no round is complete yet"
    if folder.result.exists():
        place = f"experiments/{folder.experiment}/models" if folder.experiment else "models"
        yield from _result(read_json(folder.result, "the sites have their models nevertheless"), place)
    head, fault = examine(folder.deliveries, folder.has_run)
    if head.lines or fault:
        yield f"delivery log: {head.lines} lines, {'whole' if fault is None else 'TAMPERED WITH: ' + fault}"


def facts(folder: FederationFolder) -> dict[str, Any]:
    """Return the same for programs; `problems` has what somebody should look after."""
    config = folder.config()
    status = read_json(folder.status, LOST) if folder.status.exists() else {}
    head, fault = examine(folder.deliveries, folder.has_run)
    problems = [] if fault is None else [f"the delivery log was tampered with: {fault}"]
    problems += expiring(folder.server / "server.crt", folder.server / "ca.crt")
    quiet = time.time() - status.get("since", status.get("time", time.time()))
    longest = 2 * config.deadline + config.startup_timeout + PATIENCE
    if quiet > longest and not folder.result.exists():
        waiting = f"the server may not be running; when it did, {waiting_for(status)}" if "missing" in status else None
        why = waiting or status.get("again") or "the server may not be running"
        problems.append(
            f"no round was complete for {quiet:.0f} s, and one takes {config.deadline:.0f} s at most: {why}"
        )
    return {
        **status,
        "experiment": folder.experiment or FIRST,
        "method": config.method,
        "sites": [site.name for site in folder.members()],
        "is_finished": folder.result.exists(),
        "log": {"lines": head.lines, "fault": fault},
        "problems": problems,
    }


def _progress(status: dict[str, Any]) -> Iterator[str]:
    if "missing" in status:
        yield f"{status['rounds_done']} of {status['rounds']} rounds are complete; {waiting_for(status)}"
        return
    ago, again = f"{time.time() - status['time']:.0f} s ago", status.get("again")
    last = f", the last one {ago}" if again is None else f"; the next one is run again ({again}), last tried {ago}"
    yield (
        f"{status['rounds_done']} of {status['rounds']} rounds are complete{last}:"
        f" {len(status['answered'])} of {len(status['asked'])} sites answered in {status['seconds']:.1f} s,"
        f" {status['bytes_sent'] / 1e6:.2f} MB sent, {status['bytes_received'] / 1e6:.2f} MB received"
    )
    yield from faults_in(status)


def waiting_for(status: Mapping[str, Any]) -> str:
    """Say who is on line before a round can begin, and who is not."""
    online, missing, least = status["online"], status["missing"], status.get("least", 0)
    there = f"{len(online)} of {len(online) + len(missing)} sites are on line"
    there += f", and a round takes {least}" if len(online) < least else ""
    return f"{there}; waiting for {listed(missing)}" if missing else there


def faults_in(status: Mapping[str, Any]) -> Iterator[str]:
    """Say who did not answer well in a round, and why."""
    for what, word in (("faults", ""), ("refused", "upload refused: "), ("suspected", "upload is odd: ")):
        for site, reason in status.get(what, {}).items():
            yield f"{site}: {word}{printable(reason)}"


def _result(result: dict[str, Any], place: str) -> Iterator[str]:
    yield f"finished; every site's model is in its folder, {place}/personalised.safetensors"
    for site, score in sorted(result["after_update"].items()):
        known = Score.from_dict(score)
        if not math.isnan(known.metric):
            further = "".join(f", {printable(name)} {value:.3f}" for name, value in known.metrics.items())
            yield f"{site} reports: {known.metric:.3f} on its {known.num_examples} test examples{further}"
    for site in result["without_last_update"]:
        yield f"{site}: was not there for the last update; it has the model of its last round"
