"""A site's own report: how it does in the federation, round by round, and beside training alone if it did that too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedfomo.core.metrics import Score
from fedfomo.deployment.settings import SiteFolder
from fedfomo.deployment.site_status import is_finished
from fedfomo.errors import require
from fedfomo.io import PRIVATE, read_json, read_lines

if TYPE_CHECKING:  # a site needs none of it until the end, and it imports scipy
    from fedfomo.report.data import FinalResult, ReportData, ReportInput

LOST = "the site writes it anew with the next request"
ADVICE = "`fedfomo deploy site --alone` trains alone beside the federation, so that this page can say whether it pays."


def conclude(site: SiteFolder) -> str | None:
    """Write the site's report and return a sentence on whether federating pays; None while a result is missing."""
    final = _final(site)
    if final is None or not (site.alone / "result.json").exists() or not is_finished(site):
        return None
    sentence = write_site_report(site).sentences[0].partition(": ")[2]  # after the site's name
    return f"{sentence} The report, which stays here: {site.report}"


def write_site_report(site: SiteFolder) -> ReportData:
    """Write the site's report into its folder."""
    from fedfomo.report.build import build_report_data
    from fedfomo.report.page import write_report

    facts = build_report_data(load_site(site))
    write_report(facts, site.report).chmod(PRIVATE)
    return facts


def load_site(site: SiteFolder) -> ReportInput:
    """Collect what a site knows of itself."""
    from fedfomo.report.data import ClientFacts, PrivacyFacts, ReportInput, Reproduce

    name, lines, final = site.card().name, read_lines(site.scores), _final(site)
    require(bool(lines) and final is not None, f"{site.path} has answered no request yet: there is nothing to report")
    asked = read_json(site.asked, LOST)
    ended: dict[str, FinalResult] = {}
    if final is not None and is_finished(site):
        ended[asked["method"]] = _result(final, sum(line["bytes_up"] for line in lines))
    alone = site.alone / "result.json"
    if alone.exists() and ended:
        ended["local"] = _result(read_json(alone, "delete it"), 0)
    tested = max((line["after_update"] or {}).get("num_examples", 0) for line in lines)
    privacy = site.privacy()
    notes = ["Everything on this page was found out at this site, and stays here."]
    if privacy.is_on and "local" in ended:
        notes.append("The federation's model was trained with noise for privacy, the one alone without.")
    return ReportInput(
        title=f"{name} in its federation" + (f", experiment {site.experiment}" if site.experiment else ""),
        method=asked["method"],
        algorithm=None,
        seed=asked["seed"],
        rounds_planned=asked["rounds"],
        clients=[ClientFacts(name, None, None, tested)],
        lines=[_line(line) for line in lines if line["kind"] != "finish"],
        seconds={},
        ended=ended,
        affinity=None,
        mixing=None,
        own_targets=False,
        reproduce=Reproduce("", "", {}, {"fedfomo": version("fedfomo")}),
        metric=asked.get("metric", "accuracy"),
        word="site",
        data="This site's own.",
        is_simulated=False,
        notes=notes,
        advice="" if "local" in ended else ADVICE,
        privacy=PrivacyFacts(None, None, None),
    )


def _final(site: SiteFolder) -> dict[str, Any] | None:
    path = site.models / "personalised.json"
    return read_json(path, LOST) if path.exists() else None


def _result(known: Mapping[str, Any], bytes_moved: int) -> FinalResult:
    from fedfomo.report.data import FinalResult
    from fedfomo.report.per_example import PerExampleScores

    score = Score(math.nan, math.nan, 0) if known["score"] is None else Score.from_dict(known["score"])
    figures = [math.nan if value is None else value for value in known.get("figures") or []]
    is_known = bool(figures) and not any(map(math.isnan, figures))
    return FinalResult({0: score}, bytes_moved, 0, PerExampleScores([figures], None, "") if is_known else None)


def _line(line: Mapping[str, Any]) -> dict[str, Any]:
    scored = {part: {} if line[part] is None else {"0": line[part]} for part in ("after_update", "after_training")}
    traffic = {"models_down": None, "bytes_down": line["bytes_down"], "bytes_up": line["bytes_up"]}
    return {
        "round": line["round"],
        "cohort": [0],
        "uploads": {"0": {}} if line["uploads"] else {},
        "traffic": traffic,
        "refused": {},
        "suspected": {},
        **scored,
    }
