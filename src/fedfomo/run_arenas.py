"""From the folders of several runs to methods set against each other, on everything that they were played on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedfomo.config import Setting, flags_of
from fedfomo.errors import require
from fedfomo.experiment import read_config, read_record
from fedfomo.report.comparing import Arena, ClientKey, compare_methods
from fedfomo.run_facts import comparable, find_run, method_in_full


def arenas_of(folders: Sequence[Path]) -> list[Arena]:
    """Sort finished runs by what they were played on, and set their methods against each other."""
    found: dict[str, dict[str, dict[int, Path]]] = {}  # by setting, method and seed
    for folder in _runs_in(folders):
        config = read_config(folder)
        runs = found.setdefault(_title(config.setting), {}).setdefault(method_in_full(config), {})
        known = runs.setdefault(config.seed, folder)
        is_same = known == folder or _accuracies(known) == _accuracies(folder)  # every comparison has training alone
        fault = "have the same method, settings and seed, and ended differently"
        require(is_same, f"{known} and {folder} {fault}: leave one of them out")
    return [
        compare_methods(title, {method: _of_all_seeds(runs) for method, runs in methods.items()})
        for title, methods in found.items()
    ]


def _runs_in(folders: Sequence[Path]) -> list[Path]:
    runs: list[Path] = []
    for folder in folders:
        first = find_run(folder)
        runs += [folder] if first == folder else sorted(path.parent for path in folder.glob("*-seed-*/config.toml"))
    finished = [run for run in runs if (run / "result.json").exists()]
    require(bool(finished), "none of these runs is finished")
    return finished


def _title(setting: Setting) -> str:
    """Say what runs have in common that can be compared: all that decides a result, as far as it is not the default."""
    usual, scenario = Setting(), setting.scenario
    said = replace(scenario, scenario=usual.scenario.scenario, clients=usual.scenario.clients)
    rest = replace(comparable(setting), scenario=said, rounds=usual.rounds)
    further = [flag.removeprefix("--") for flag in flags_of(rest)]
    parts = [scenario.scenario, f"{scenario.clients} clients", *further, f"{setting.rounds} rounds"]
    return f"{setting.dataset}: {', '.join(parts)}"


def _of_all_seeds(runs: Mapping[int, Path]) -> dict[ClientKey, float]:
    return {(seed, client): value for seed, run in runs.items() for client, value in _accuracies(run).items()}


def _accuracies(folder: Path) -> dict[int, float]:
    """Return the accuracies of those who have test examples."""
    return {client: value for client, value in read_record(folder).accuracies().items() if math.isfinite(value)}
