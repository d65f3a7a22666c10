"""From the folders of several runs to methods set against each other, on everything that they were played on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedfomo.errors import require
from fedfomo.report.comparison import ClientKey, ScenarioComparison, compare_methods
from fedfomo.report.from_run import comparable, method_in_full
from fedfomo.report.select_run import comparison_in
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.config_io import to_cli
from fedfomo.runs.provenance import read_environment, same_clients
from fedfomo.runs.run import read_config, read_record


def compare_runs(folders: Sequence[Path]) -> list[ScenarioComparison]:
    """Sort finished runs by what they were played on, and set their methods against each other."""
    found: dict[tuple[str, str], dict[str, dict[int, Path]]] = {}  # by setting and data, method and seed
    for folder in _runs_in(folders):
        config = read_config(folder)
        played_on = _title(config.setting), read_environment(folder)["data"]["sha256"]
        methods = found.setdefault(played_on, {})
        _check_clients(folder, [runs[config.seed] for runs in methods.values() if config.seed in runs])
        runs = methods.setdefault(method_in_full(config), {})
        known = runs.setdefault(config.seed, folder)
        is_same = known == folder or _accuracies(known) == _accuracies(folder)  # every comparison has training alone
        fault = "have the same method, settings and seed, and ended differently"
        require(is_same, f"{known} and {folder} {fault}: leave one of them out")
    counts = Counter(title for title, _ in found)
    return [
        compare_methods(
            title if counts[title] == 1 else f"{title}, data {digest[:8]}",
            {method: _of_all_seeds(runs) for method, runs in methods.items()},
        )
        for (title, digest), methods in found.items()
    ]


def _check_clients(folder: Path, others: Sequence[Path]) -> None:
    """Refuse a run whose clients, though of the same data, settings and seed, were others."""
    mine = read_environment(folder)
    for other in others:
        is_same = same_clients(mine, read_environment(other))
        cause = "though of the same data, settings and seed (latent groups were built again in between)"
        require(is_same, f"{other} and {folder} had other clients, {cause}: give them to reports of their own")


def _runs_in(folders: Sequence[Path]) -> list[Path]:
    runs: list[Path] = []
    for folder in folders:
        parts = sorted(path.parent for path in folder.glob("*-seed-*/config.toml"))
        runs += [folder] if comparison_in(folder) is None else parts
    finished = [run for run in runs if (run / "result.json").exists()]
    require(bool(finished), "none of these runs is finished")
    return finished


def _title(setting: ExperimentConfig) -> str:
    """Say what runs have in common that can be compared: all that decides a result, as far as it is not the default."""
    usual, scenario = ExperimentConfig(), setting.scenario
    said = replace(scenario, scenario=usual.scenario.scenario, clients=usual.scenario.clients)
    rest = replace(comparable(setting), scenario=said, rounds=usual.rounds)
    further = [flag.removeprefix("--") for flag in to_cli(rest)]
    parts = [scenario.scenario, f"{scenario.clients} clients", *further, f"{setting.rounds} rounds"]
    return f"{setting.dataset}: {', '.join(parts)}"


def _of_all_seeds(runs: Mapping[int, Path]) -> dict[ClientKey, float]:
    return {(seed, client): value for seed, run in runs.items() for client, value in _accuracies(run).items()}


def _accuracies(folder: Path) -> dict[int, float]:
    """Return the accuracies of those who have test examples."""
    return {client: value for client, value in read_record(folder).accuracies().items() if math.isfinite(value)}
