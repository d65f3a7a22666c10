"""The command that runs one method; what all commands that run methods show of it."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedfomo.cli.tables import LEGEND, comparison_table, epsilon_table
from fedfomo.cli.terminal import console, fail, parse_run, stop_code, warn, warn_of
from fedfomo.errors import InputError, disk_sentence, is_disk_fault
from fedfomo.io import read_lines
from fedfomo.runs.config import ExperimentConfig, RunConfig, label_of
from fedfomo.runs.config_io import named

if TYPE_CHECKING:
    from fedfomo.runs.own_problem import AnyPrepared
    from fedfomo.runs.records import RunRecord

MOST_WARNINGS = 5


def run(arguments: list[str]) -> None:
    """Run one method."""
    config = parse_run(arguments)
    from fedfomo.algorithms import make_algorithm
    from fedfomo.runs.own_problem import prepare_any
    from fedfomo.runs.run import absolute_method, absolute_paths, start_run

    algorithm = make_algorithm(config.method, config.options)  # refuse before anything is written
    config = replace(config, method=absolute_method(config.method), setting=absolute_paths(config.setting))
    prepared = prepare_any(config.setting, config.seed)
    prepared.problem.check(algorithm)
    with folder_for(config.out, label_of(config.method)) as folder:
        start_run(config, folder, prepared)
        finish_run(folder, config, prepared)


def finish_run(folder: Path, config: RunConfig, prepared: AnyPrepared | None = None) -> None:
    """Finish a run."""
    from fedfomo.privacy.accountant import describe_privacy
    from fedfomo.runs.own_problem import prepare_any

    prepared = prepared or prepare_any(config.setting, config.seed, [folder])
    introduce(config.setting, prepared, first=True)
    record = run_with_progress(folder, folder, config, prepared)
    show_table([record])
    if record.spent is not None:
        privacy = config.setting.privacy
        console.print(epsilon_table(folder / "rounds.jsonl", privacy.delta))
        for sentence in describe_privacy(record.spent, privacy):
            console.print(sentence, soft_wrap=True)
    console.print(f"everything about this run is in {folder}; to see it: fedfomo report {folder}", soft_wrap=True)


@contextmanager
def folder_for(out: Path | None, name: str) -> Generator[Path]:
    """Make a folder, and take it away if nothing comes of it: the same command, put right, may be given again."""
    from fedfomo.runs.run import new_folder

    folder = new_folder(out, name)
    try:
        yield folder
    except (InputError, OSError):
        if not any(folder.rglob("rounds.jsonl")):
            shutil.rmtree(folder, ignore_errors=True)
        raise


def introduce(setting: ExperimentConfig, prepared: AnyPrepared, first: bool) -> None:
    """Say what is about to run, and what is odd about it."""
    from fedfomo.runs.own_problem import PreparedFile

    clients = prepared.problem.clients
    examples = f"{sum(len(client.train) for client in clients)} training examples"
    if isinstance(prepared, PreparedFile):
        notes = prepared.environment["warnings"]
        introduction = f"{prepared.path.name}: {len(clients)} sites, {examples}"
    else:
        scenario, notes = prepared.scenario, prepared.scenario.warnings
        kind = f"{prepared.data.name}, {setting.scenario.scenario}: {len(clients)} clients"
        introduction = f"{kind}, {examples}, mean label distance (EMD) {scenario.emd_l1:.2f}"
    if first:
        console.print(introduction, soft_wrap=True)
        for name in setting.scenario.ignored if not setting.is_own else ():
            warn(f"--{name.replace('_', '-')} has no effect in the scenario {setting.scenario.scenario}")
    warn_of(notes, MOST_WARNINGS, ", all in environment.json")


def run_with_progress(folder: Path, to_resume: Path, config: RunConfig, prepared: AnyPrepared) -> RunRecord:
    """Finish one run under a progress bar; whatever stops it, say how to go on."""
    from fedfomo.core.round import cohort_size
    from fedfomo.runs.callbacks import RunBar, track_run
    from fedfomo.runs.run import run_or_resume
    from fedfomo.simulation.callbacks import Callbacks
    from fedfomo.simulation.executors import WorkerLostError

    simulation, clients = prepared.simulation, len(prepared.problem.clients)
    title, metric = f"{label_of(config.method)}, seed {config.seed}", prepared.problem.model.metrics.leading
    hint = f"go on with `fedfomo resume {to_resume}`"
    try:
        bar = RunBar(console, title, simulation.rounds, cohort_size(clients, simulation.participation), clients, metric)
        facts = {"method": config.method, "seed": config.seed, **named(config.setting)}
        with bar, track_run(config.setting.track, folder, facts, warn, metric) as tracked:
            record = run_or_resume(folder, prepared, Callbacks(tracked, bar), warn)
    except KeyboardInterrupt as stop:
        fail(f"stopped; nothing is lost up to the last complete round: {hint}", stop_code(stop))
    except OSError as error:
        if not is_disk_fault(error):
            raise
        fail(f"{disk_sentence(error)}; put that right, then {hint}", 2)
    except WorkerLostError as error:
        fail(f"{error}: with fewer workers, {hint} --workers N", 2)
    if record.best_round is not None:
        warn(f"{title}: models are those of round {record.best_round}, the best on validation data")
    for client, number in sorted(record.refusals.items()):
        warn(f"uploads of client {client} were refused in {number} rounds; {folder / 'rounds.jsonl'} says why")
    for client, number in sorted(_suspicions(folder / "rounds.jsonl").items()):
        warn(f"client {client} uploaded nearly nothing new in {number} rounds; {folder / 'rounds.jsonl'} says what")
    return record


def show_table(records: list[RunRecord]) -> None:
    """Show how runs ended."""
    console.print(comparison_table(records))
    console.print(LEGEND, style="dim")


def _suspicions(log: Path) -> Counter[int]:
    """Count the rounds in which a client's upload was odd."""
    return Counter(int(client) for line in read_lines(log, b'"suspected"') for client in line["suspected"])
