"""Playing runs in front of a person: introduction, progress, table."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedfomo.algorithms import make_algorithm
from fedfomo.cli.privacy_table import epsilon_table
from fedfomo.cli.tables import LEGEND, comparison_table, learning_map, recovery_sentence, verdict
from fedfomo.cli.terminal import console, fail, warn
from fedfomo.core.round import cohort_size
from fedfomo.errors import InputError, disk_sentence, is_disk_fault
from fedfomo.io import read_lines, write_atomically
from fedfomo.privacy.summary import describe_privacy
from fedfomo.runs.config import CompareConfig, ExperimentConfig, RunConfig, label_of
from fedfomo.runs.config_io import named, write_toml
from fedfomo.runs.progress import RunBar
from fedfomo.runs.run import RunRecord, absolute_paths, excluded_methods, new_folder, run_or_resume, runs_of, start_run
from fedfomo.runs.setup import Prepared, prepare
from fedfomo.runs.trackers import track_run
from fedfomo.simulation.executors import WorkerLostError

MOST_WARNINGS = 5


def play_run(config: RunConfig) -> None:
    """Start a run and play it to its end."""
    make_algorithm(config.method, config.options)  # refuse before anything is written
    config = replace(config, setting=absolute_paths(config.setting))
    prepared = prepare(config.setting, config.seed)
    with _new_folder(config.out, config.method) as folder:
        start_run(config, folder, prepared)
        finish_run(folder, config, prepared)


def finish_run(folder: Path, config: RunConfig, prepared: Prepared | None = None) -> None:
    """Play what is left of a run."""
    prepared = prepared or prepare(config.setting, config.seed)
    _introduce(config.setting, prepared, first=True)
    record = _play(folder, folder, config, prepared)
    _show_table([record])
    if record.spent is not None:
        privacy = config.setting.privacy
        console.print(epsilon_table(folder / "rounds.jsonl", privacy.delta))
        for sentence in describe_privacy(record.spent, privacy):
            console.print(sentence, soft_wrap=True)
    console.print(f"everything about this run is in {folder}; to see it: fedfomo report {folder}", soft_wrap=True)


def play_comparison(config: CompareConfig, name: str) -> Path:
    """Start all runs of a comparison, play them to their ends, and return their folder."""
    for planned in runs_of(config):  # refuse before anything is written
        make_algorithm(planned.method, planned.options)
    config = replace(config, setting=absolute_paths(config.setting))
    prepared = prepare(config.setting, config.seeds[0])
    with _new_folder(config.out, name) as folder:
        write_atomically(folder / "config.toml", write_toml(config).encode())
        finish_comparison(folder, config, prepared)
    return folder


def finish_comparison(folder: Path, config: CompareConfig, prepared: Prepared | None = None) -> None:
    """Play what is left of a comparison, of whose first seed everything may be prepared."""
    for note in excluded_methods(config):
        warn(note)
    records: list[RunRecord] = []
    latest = config.seeds[0], prepared or prepare(config.setting, config.seeds[0])
    _introduce(config.setting, latest[1], first=True)
    for planned in runs_of(config):
        if planned.seed != latest[0]:
            latest = planned.seed, prepare(config.setting, planned.seed)
            _introduce(config.setting, latest[1], first=False)
        place = folder / f"{label_of(planned.method)}-seed-{planned.seed}"
        if not (place / "environment.json").exists():
            place.mkdir(exist_ok=True)
            start_run(planned, place, latest[1])
        records.append(_play(place, folder, planned, latest[1]))
    _show_table(records)
    for record in records:
        if record.spent is not None:
            statement, *_ = describe_privacy(record.spent, config.setting.privacy)
            console.print(f"{record.method}, seed {record.seed}: {statement}", soft_wrap=True)
    _show_findings(records)
    console.print(f"\nruns are kept in {folder}; who benefits from whom: fedfomo report {folder}", soft_wrap=True)


@contextmanager
def _new_folder(out: Path | None, name: str) -> Generator[Path]:
    """Make a folder, and take it away if nothing comes of it: the same command, put right, may be given again."""
    folder = new_folder(out, name)
    try:
        yield folder
    except (InputError, OSError):
        if not any(folder.rglob("rounds.jsonl")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _show_findings(records: list[RunRecord]) -> None:
    """Show who learnt from whom under FedFomo, and what that gained them."""
    found = [record for record in records if record.method == "fedfomo"]
    if not found or found[0].taken is None:
        return
    console.print(f"\nWho learnt from whom (FedFomo, seed {found[0].seed}): each row a receiver, fuller for more")
    console.print(learning_map(found[0].taken, found[0].groups))
    for record in found:
        if record.groups_found is not None:
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
        bar = RunBar(console, title, plan.rounds, cohort_size(clients, plan.participation), clients)
        facts = {"method": config.method, "seed": config.seed, **named(config.setting)}
        with bar, track_run(config.setting.track, folder, facts, warn) as tracked:
            record = run_or_resume(folder, prepared, bar, warn, tracked)
    except KeyboardInterrupt:
        fail(f"stopped; nothing is lost up to the last complete round: {hint}", 130)
    except OSError as error:
        if not is_disk_fault(error):
            raise
        fail(f"{disk_sentence(error)}; put that right, then {hint}", 2)
    except WorkerLostError as error:
        fail(f"{error}: with fewer workers, {hint} --workers N", 2)
    for client, number in sorted(record.refusals.items()):
        warn(f"uploads of client {client} were refused in {number} rounds; {folder / 'rounds.jsonl'} says why")
    for client, number in sorted(_suspicions(folder / "rounds.jsonl").items()):
        warn(f"client {client} uploaded nearly nothing new in {number} rounds; {folder / 'rounds.jsonl'} says what")
    return record


def _suspicions(log: Path) -> Counter[int]:
    """Count the rounds in which a client's upload was odd."""
    return Counter(int(client) for line in read_lines(log, b'"suspected"') for client in line["suspected"])


def _introduce(setting: ExperimentConfig, prepared: Prepared, first: bool) -> None:
    """Say what is about to run, and what is odd about it."""
    scenario = prepared.scenario
    if first:
        console.print(
            f"{prepared.data.name}, {setting.scenario.scenario}: {len(scenario.clients)} clients,"
            f" {sum(len(c.train) for c in scenario.clients)} training examples,"
            f" mean label distance (EMD) {scenario.emd_l1:.2f}"
        )
    for warning in scenario.warnings[:MOST_WARNINGS]:
        warn(warning)
    if len(scenario.warnings) > MOST_WARNINGS:
        warn(f"and {len(scenario.warnings) - MOST_WARNINGS:,} more notes of this kind, all in environment.json")
