"""How far a site is, in its own folder: for its people, and for programs that watch it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from fedfomo.core.metrics import Score
from fedfomo.deployment.renewal import expiring
from fedfomo.deployment.settings import FIRST, SiteFolder
from fedfomo.deployment.site_scores import read_scores
from fedfomo.errors import InputError
from fedfomo.io import lock, printable, read_json

LOST = "the site writes it anew"


def facts(site: SiteFolder, is_running: bool | None = None) -> dict[str, Any]:
    """Return what is known of a site in the latest experiment; `problems` has what somebody should look after.

    Whoever runs the site says so by `is_running`, and must: to look for its lock would let the lock go.
    """
    site = site.latest()
    words = read_json(site.words, LOST) if site.words.exists() else None
    lines = read_scores(site)
    asked = read_json(site.asked, LOST) if site.asked.exists() else {}
    has_ended, runs = is_finished(site), _is_running(site) if is_running is None else is_running
    problems = [words["words"]] if runs and words and words["is_fault"] and not has_ended else []
    if site.words.exists() and not runs and not has_ended:
        problems.append("no process of this site runs: start it with `fedfomo deploy site`")
    problems += expiring(site.ca)
    return {
        "name": site.card().name,
        "experiment": site.experiment or FIRST,
        "is_running": runs,
        "is_finished": has_ended,
        "rounds_answered": sum(line["kind"] == "train" for line in lines),
        "rounds": asked.get("rounds"),
        "score": lines[-1]["after_update"] if lines else None,
        "words": words,
        "report": str(site.report) if site.report.exists() else None,
        "problems": [printable(problem) for problem in problems],
    }


def sentences(site: SiteFolder) -> Iterator[str]:
    """Tell the same in words."""
    known = facts(site)
    rounds = f" of {known['rounds']}" if known["rounds"] else ""
    done = ", and all rounds are complete" if known["is_finished"] else ""
    within = f", experiment '{known['experiment']}'" if site.latest().experiment else ""
    yield f"{known['name']}{within}: {known['rounds_answered']}{rounds} rounds answered{done}"
    if known["score"] is not None:
        score = Score.from_dict(known["score"])
        yield f"its model scores {score.metric:.3f} on its {score.num_examples} test records"
    if known["words"] is not None:
        moment = datetime.fromtimestamp(known["words"]["time"])
        yield f"last word, {moment:%Y-%m-%d %H:%M:%S}: {printable(known['words']['words'])}"
    if known["report"] is not None:
        yield f"report: {known['report']}"


def is_finished(site: SiteFolder) -> bool:
    """Tell whether the site has made the last federated update."""
    path = site.models / "personalised.json"
    known = read_json(path, LOST) if path.exists() else {"round": 0, "rounds": 1}
    return bool(known["round"] >= known["rounds"])


def _is_running(site: SiteFolder) -> bool:
    """Tell whether another process has the site's lock: a process that closes the file gives up its own lock on it."""
    place = site.path / "supervisor.lock"
    if not place.exists():
        return False
    try:
        lock(place, "it is running").close()
    except InputError:
        return True
    return False
