"""The command that runs several methods over several seeds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedfomo.cli.run import folder_for, introduce, run_with_progress, show_table
from fedfomo.cli.tables import learning_map, recovery_sentence, verdict
from fedfomo.cli.terminal import console, parse_comparison, warn
from fedfomo.io import write_atomically
from fedfomo.runs.config import CompareConfig, label_of
from fedfomo.runs.config_io import write_toml

if TYPE_CHECKING:
    from fedfomo.runs.own_problem import AnyPrepared
    from fedfomo.runs.records import RunRecord


def compare(arguments: list[str]) -> None:
    """Run several methods."""
    start_comparison(parse_comparison(arguments), "compare")


def start_comparison(config: CompareConfig, name: str) -> Path:
    """Start all runs of a comparison, run them to their ends, and return their folder."""
    from fedfomo.algorithms import make_algorithm
    from fedfomo.runs.own_problem import prepare_any
    from fedfomo.runs.run import absolute_method, absolute_paths, runs_of, with_methods_named

    runs_of(config)  # refuse before the data are read
    methods = tuple(map(absolute_method, config.methods))
    config = replace(config, methods=methods, setting=absolute_paths(config.setting))
    prepared = prepare_any(config.setting, config.seeds[0])
    config, notes = with_methods_named(config, prepared.problem.trainer)
    for note in notes:
        warn(note)
    for run in runs_of(config):  # refuse before anything is written
        prepared.problem.check(make_algorithm(run.method, run.options))
    with folder_for(config.out, name) as folder:
        write_atomically(folder / "config.toml", write_toml(config).encode())
        finish_comparison(folder, config, prepared)
    return folder


def finish_comparison(folder: Path, config: CompareConfig, prepared: AnyPrepared | None = None) -> None:
    """Run what is left of a comparison, of whose first seed everything may be prepared."""
    from fedfomo.privacy.accountant import describe_privacy
    from fedfomo.runs.own_problem import prepare_any
    from fedfomo.runs.run import runs_of, start_run

    records: list[RunRecord] = []
    latest = config.seeds[0], prepared or prepare_any(config.setting, config.seeds[0], _begun(folder, config.seeds[0]))
    introduce(config.setting, latest[1], first=True)
    for planned in runs_of(config):
        if planned.seed != latest[0]:
            latest = planned.seed, prepare_any(config.setting, planned.seed, _begun(folder, planned.seed))
            introduce(config.setting, latest[1], first=False)
        place = folder / f"{label_of(planned.method)}-seed-{planned.seed}"
        if not (place / "environment.json").exists():
            place.mkdir(exist_ok=True)
            start_run(planned, place, latest[1])
        records.append(run_with_progress(place, folder, planned, latest[1]))
    show_table(records)
    for record in records:
        if record.spent is not None:
            statement, *_ = describe_privacy(record.spent, config.setting.privacy)
            console.print(f"{record.method}, seed {record.seed}: {statement}", soft_wrap=True)
    _show_findings(records)
    console.print(f"\nruns are kept in {folder}; who benefits from whom: fedfomo report {folder}", soft_wrap=True)


def _begun(folder: Path, seed: int) -> list[Path]:
    """Return the folders of the runs of one seed."""
    return sorted(folder.glob(f"*-seed-{seed}"))


def _show_findings(records: list[RunRecord]) -> None:
    """Show who learnt from whom under the first method that says who values whom, and what that gained them."""
    from fedfomo.report.text import title_of

    shown = next((record for record in records if record.affinity is not None and record.taken is not None), None)
    if shown is None or shown.taken is None:
        return
    title = title_of(shown.method)
    console.print(f"\nWho learnt from whom ({title}, seed {shown.seed}): each row a receiver, fuller for more")
    console.print(learning_map(shown.taken, shown.groups))
    for record in records:
        if record.method == shown.method and record.groups_found is not None:
            console.print(recovery_sentence(record))
    console.print(verdict(records, shown.method))
