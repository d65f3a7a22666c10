"""Playing runs in front of a person: introduction, progress, table."""

from __future__ import annotations

import errno
from pathlib import Path

from fedfomo.algorithms import make_algorithm
from fedfomo.commands.terminal import console, fail, warn
from fedfomo.config import CompareConfig, RunConfig, Setting, options_of, write_toml
from fedfomo.display.progress import RunBar, duration
from fedfomo.display.tables import LEGEND, affinity_map, comparison_table, recovery_sentence, verdict
from fedfomo.experiment import Prepared, RunRecord, go_on, new_folder, prepare, runs_of, start_run
from fedfomo.federation import cohort_size
from fedfomo.forecast import forecast_seconds


def play_run(config: RunConfig) -> None:
    """Start a run and play it to its end."""
    make_algorithm(config.method, options_of(config.options))  # refuse before anything is written
    prepared = prepare(config.setting, config.seed)
    folder = new_folder(config.out, config.method)
    start_run(config, folder, prepared)
    finish_run(folder, config, prepared)


def finish_run(folder: Path, config: RunConfig, prepared: Prepared | None = None) -> None:
    """Play what is left of a run."""
    prepared = prepared or prepare(config.setting, config.seed)
    _introduce(config.setting, prepared, first=True)
    _show_table([_play(folder, folder, config, prepared)])
    console.print(f"everything about this run is in {folder}", soft_wrap=True)


def play_comparison(config: CompareConfig, name: str) -> list[RunRecord]:
    """Start all runs of a comparison and play them to their ends."""
    for planned in runs_of(config):  # refuse before anything is written
        make_algorithm(planned.method, options_of(planned.options))
    folder = new_folder(config.out, name)
    (folder / "config.toml").write_text(write_toml(config))
    return finish_comparison(folder, config)


def finish_comparison(folder: Path, config: CompareConfig) -> list[RunRecord]:
    """Play what is left of a comparison."""
    records: list[RunRecord] = []
    prepared: dict[int, Prepared] = {}
    for planned in runs_of(config):
        if planned.seed not in prepared:
            prepared = {planned.seed: prepare(config.setting, planned.seed)}
            _introduce(config.setting, prepared[planned.seed], first=planned.seed == config.seeds[0])
        place = folder / f"{planned.method}-seed-{planned.seed}"
        if not (place / "environment.json").exists():
            place.mkdir(exist_ok=True)
            start_run(planned, place, prepared[planned.seed])
        records.append(_play(place, folder, planned, prepared[planned.seed]))
    _show_table(records)
    console.print(f"runs are kept in {folder}", soft_wrap=True)
    return records


def show_findings(records: list[RunRecord]) -> None:
    """Show what FedFomo found out about its clients, and what that gained them."""
    found = [record for record in records if record.method == "fedfomo"]
    if found[0].affinity is not None:
        console.print("\nWho helps whom (FedFomo, first seed; brighter: that giver's models help that receiver more)")
        console.print(affinity_map(found[0].affinity, found[0].groups))
    for record in found:
        console.print(recovery_sentence(record))
    console.print(verdict(records))


def _show_table(records: list[RunRecord]) -> None:
    console.print(comparison_table(records))
    console.print(LEGEND, style="dim")


def _play(folder: Path, to_resume: Path, config: RunConfig, prepared: Prepared) -> RunRecord:
    plan, clients = prepared.plan, len(prepared.problem.clients)
    title = f"{config.method}, seed {config.seed}"
    hint = f"go on with `fedfomo resume {to_resume}`"
    try:
        with RunBar(console, title, plan.rounds, cohort_size(clients, plan.participation), clients) as bar:
            return go_on(folder, prepared, bar, warn)
    except KeyboardInterrupt:
        fail(f"stopped; nothing is lost up to the last complete round: {hint}", 130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        fail(f"cannot write {error.filename}: {error.strerror}; make room, then {hint}", 2)


def _introduce(setting: Setting, prepared: Prepared, first: bool) -> None:
    """Say what is about to run, what is odd about it, and how long it may take."""
    scenario = prepared.scenario
    if first:
        console.print(
            f"{prepared.data.name}, {setting.scenario.scenario}: {len(scenario.clients)} clients,"
            f" {sum(len(c.train) for c in scenario.clients)} training examples,"
            f" label distance (EMD) {scenario.emd_l1:.2f}, as the authors count it {scenario.emd_official:.2f}"
        )
        seconds = forecast_seconds(prepared.problem, prepared.plan)
        if seconds > 10:
            console.print(f"forecast: about {duration(seconds)} a run")
    for warning in scenario.warnings:
        warn(warning)
