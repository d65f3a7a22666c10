"""The command that writes reports: about one run, or about several side by side."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from fedfomo.cli.terminal import console, parse, require_file, warn
from fedfomo.errors import InputError, require

if TYPE_CHECKING:
    from fedfomo.report.data import ReportData
    from fedfomo.simulation.problem import FederatedProblem

MOST_SENTENCES = 20  # more clients than that are for the page
WATCH_SECONDS = 1.0  # between two looks at the log


@dataclass(frozen=True)
class ReportConfig:
    """Write an HTML report on a run: which clients gain by federating, and who learned from whom.

    For a report on several comparisons: fedfomo report compare RUNS…
    """

    run: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Folder of a run, of a comparison, or of a real federation or one of its experiments (at its server)."""
    out: Path | None = None
    """The file to write; by default report.html in the folder."""
    method: str | None = None
    """For a comparison: the method to report on; by default fedfomo, and in a folder of `federate` the first that it
    was given."""
    seed: int | None = None
    """For a comparison: the seed; by default the first."""
    beside: tuple[Path, ...] = ()
    """Further runs on the same clients to compare with."""
    watch: bool = False
    """Write the report again after every round until the run ends; wait for the run if it has not begun."""


@dataclass(frozen=True)
class CompareReportConfig:
    """Write an HTML report that compares methods, client by client, on one or several scenarios."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN…")]
    """Folders of comparisons or runs; those with the same clients and settings are shown together."""
    out: Path = Path("comparison.html")
    """The file to write."""


def report(arguments: list[str]) -> None:
    """Write the report of a run."""
    if arguments[:1] == ["compare"]:
        _compare(arguments[1:])
        return
    config = parse("report", ReportConfig, arguments)
    require_file(config.out)
    if (config.run / "federation.toml").exists():
        _federation(config, config.run, None)
        return
    if (config.run / "experiment.toml").exists():
        _federation(config, config.run.absolute().parents[1], config.run.absolute().name)
        return
    from fedfomo.report.from_run import prepare_run
    from fedfomo.report.select_run import choice_in_words, find_run, has_begun, require_begun
    from fedfomo.runs.own_sites import way_to_resume

    folder = find_run(config.run, config.method, config.seed)
    if folder != config.run:
        console.print(choice_in_words(folder), soft_wrap=True)
    if config.watch and not has_begun(folder):
        console.print(f"waiting for {folder} to begin", soft_wrap=True)
    while config.watch and not has_begun(folder):
        time.sleep(WATCH_SECONDS)
    require_begun(config.run, folder)
    out = config.out or config.run / "report.html"
    loaded = prepare_run(folder)
    seen = -1
    while config.watch and not (folder / "result.json").exists():
        log = folder / "rounds.jsonl"
        size = log.stat().st_size if log.exists() else 0
        if size != seen:
            seen = size
            facts = _write(folder, out, config.beside, loaded)
            console.print(f"round {len(facts.rounds)} of {facts.rounds_planned}: {out}", soft_wrap=True)
        time.sleep(WATCH_SECONDS)
    _show(_write(folder, out, config.beside, loaded), out, way_to_resume(config.run))


def _show(facts: ReportData, out: Path, way_on: str) -> None:
    if len(facts.sentences) <= MOST_SENTENCES:
        for sentence in facts.lines:
            console.print(sentence, markup=False, soft_wrap=True)
    if facts.advice:
        console.print(facts.advice, markup=False, soft_wrap=True)
    if not facts.is_finished:
        done = f"{len(facts.rounds)} of {facts.rounds_planned} rounds are done"
        warn(f"this run is not finished, {done}: unless it is still running, {way_on} goes on")
    console.print(f"the report, for any browser: {out}", soft_wrap=True)


def _federation(config: ReportConfig, path: Path, experiment: str | None) -> None:
    """Report on an experiment of a federation; without its name, on the latest."""
    is_plain = config.method is None and config.seed is None and not config.beside and not config.watch
    require(is_plain, f"{config.run} is a real federation: of flags, its report takes --out alone")
    from fedfomo.deployment.report import load_federation
    from fedfomo.deployment.settings import FederationFolder
    from fedfomo.io import PRIVATE
    from fedfomo.report.build import build_report_data
    from fedfomo.report.page import write_report

    out = config.out or config.run / "report.html"
    known = FederationFolder(path)
    folder = known.latest() if experiment is None else known.of(experiment)
    facts = build_report_data(load_federation(folder))
    write_report(facts, out).chmod(PRIVATE)  # as the result that it shows
    again = f"deploy run {folder.experiment} {path}" if folder.experiment else f"deploy server {path}"
    _show(facts, out, f"`fedfomo {again}`")


def _compare(arguments: list[str]) -> None:
    config = parse("report compare", CompareReportConfig, arguments)
    require_file(config.out)
    require(bool(config.runs), "give the folders of some runs or comparisons: fedfomo report compare runs/NAME")
    import json

    from fedfomo.report.compare_runs import compare_runs, comparison_facts
    from fedfomo.report.page import COMPARISON_SCRIPTS, write_page

    facts = comparison_facts(compare_runs(config.runs))
    spelled = json.dumps(facts, allow_nan=False, separators=(",", ":"))
    write_page(config.out, "fedfomo: methods compared", spelled, COMPARISON_SCRIPTS)
    console.print(f"the report, for any browser: {config.out}", soft_wrap=True)


def _write(folder: Path, out: Path, beside: tuple[Path, ...], loaded: FederatedProblem | InputError) -> ReportData:
    from fedfomo.report.build import build_report_data
    from fedfomo.report.from_run import load
    from fedfomo.report.page import write_report

    facts = build_report_data(load(folder, beside, loaded))
    write_report(facts, out)
    return facts
