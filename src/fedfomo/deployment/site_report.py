"""A site's own report: how it does in the federation, round by round, and beside training alone if it did that too."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from fedfomo.core.metrics import Score
from fedfomo.deployment.privacy_ledger import SiteLedger, load_ledger
from fedfomo.deployment.settings import SiteFolder, SiteProtection
from fedfomo.deployment.site_scores import read_scores
from fedfomo.deployment.site_status import is_finished
from fedfomo.errors import require
from fedfomo.io import PRIVATE, read_json
from fedfomo.privacy.accountant import spent

if TYPE_CHECKING:  # a site needs none of it until the end, and it imports scipy
    from fedfomo.report.data import FinalResult, PrivacyFacts, ReportData, ReportInput

LOST = "the site writes it anew with the next request"


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
    from fedfomo.report.data import ClientFacts, ReportInput, Reproduce

    name, lines, final = site.card().name, read_scores(site), _final(site)
    require(bool(lines) and final is not None, f"{site.path} has answered no request yet: there is nothing to report")
    asked = read_json(site.asked, LOST)
    ended: dict[str, FinalResult] = {}
    is_of_sets = bool(asked.get("is_of_sets"))  # older sites do not say it
    if final is not None and is_finished(site):
        ended[asked["method"]] = _result(final, sum(line["bytes_up"] for line in lines), is_of_sets)
    alone = site.alone / "result.json"
    if alone.exists() and ended:
        ended["local"] = _result(read_json(alone, "delete it"), 0, is_of_sets)
    tested = max((line["after_update"] or {}).get("num_examples", 0) for line in lines)
    settings, ledger = load_ledger(site)
    notes = ["Everything on this page was found out at this site, and stays here."]
    if settings.is_on and "local" in ended:
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
        privacy=_privacy(settings, ledger),
    )


def _privacy(settings: SiteProtection, ledger: SiteLedger) -> PrivacyFacts | None:
    """Say what the site has spent in all experiments together; nothing is guaranteed where it has a fault."""
    from fedfomo.report.data import PrivacyFacts

    if not settings.is_on:
        return None
    if ledger.fault is not None:
        return PrivacyFacts(None, None, settings.delta)
    paid = spent(ledger.queries, settings.delta, settings.accountant)
    training, validation = (value if math.isfinite(value) else None for value in (paid.training, paid.validation))
    return PrivacyFacts(training, validation, settings.delta)


def _final(site: SiteFolder) -> dict[str, Any] | None:
    path = site.models / "personalised.json"
    return read_json(path, LOST) if path.exists() else None


def _result(known: Mapping[str, Any], bytes_moved: int, is_of_sets: bool) -> FinalResult:
    from fedfomo.report.data import FinalResult
    from fedfomo.report.per_example import PerExampleScores

    score = Score(math.nan, math.nan, 0) if known["score"] is None else Score.from_dict(known["score"])
    figures, resamples = (
        [math.nan if value is None else value for value in known.get(name) or []] for name in ("figures", "resamples")
    )
    is_known = bool(figures) and not any(map(math.isnan, figures))
    examples = PerExampleScores([figures], None, "", resamples=[resamples] if is_of_sets else None)
    return FinalResult({0: score}, bytes_moved, 0, examples if is_known or is_of_sets else None, is_of_sets=is_of_sets)


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
