"""Methods × scenarios, from the folders of several runs: what each client gained by one method over another."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from fedfomo.errors import require
from fedfomo.report.data import compact
from fedfomo.report.from_run import comparable, method_in_full
from fedfomo.report.intervals import Estimate, of_mean_gap
from fedfomo.report.select_run import comparison_in
from fedfomo.report.text import title_of
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.config_io import to_cli
from fedfomo.runs.own_sites import is_of_sites
from fedfomo.runs.provenance import read_environment, same_clients
from fedfomo.runs.records import percentile, read_record
from fedfomo.runs.run import read_config

ClientKey = tuple[int, int]
"""A seed, and a client of that seed: the same key is the same client under every method."""


@dataclass(frozen=True)
class PairwiseComparison:
    """One method against another on the same clients."""

    method: str
    against: str
    gaps: list[float]  # of every client of every seed that both have scores of
    mean: Estimate
    worst: float
    tenth_percentile: float
    better: int
    equal: int
    worse: int


@dataclass(frozen=True)
class ScenarioComparison:
    """One scenario, with every method that was run on it."""

    title: str
    seeds: list[int]
    means: dict[str, float]
    num_seeds: dict[str, int]  # behind each mean
    pairs: list[PairwiseComparison]
    metric: str = "accuracy"
    is_share: bool = True  # whether figures are shares, to be shown in per cent


def compare_methods(title: str, scores: Mapping[str, Mapping[ClientKey, float]]) -> ScenarioComparison:
    """Set every method against every other."""
    known = {
        method: {key: value for key, value in values.items() if math.isfinite(value)}
        for method, values in scores.items()
    }
    pairs = [
        pair
        for method in known
        for against in known
        if method != against and (pair := _pair(method, against, known[method], known[against]))
    ]
    means = {method: fmean(values.values()) for method, values in known.items() if values}
    seeds = {method: {seed for seed, _ in values} for method, values in known.items()}
    num_seeds = {method: len(seeds[method]) for method in means}
    return ScenarioComparison(title, sorted(set[int]().union(*seeds.values())), means, num_seeds, pairs)


def _pair(
    method: str, against: str, ours: Mapping[ClientKey, float], theirs: Mapping[ClientKey, float]
) -> PairwiseComparison | None:
    gaps = [ours[key] - theirs[key] for key in sorted(ours) if key in theirs]
    if not gaps:
        return None
    better, worse = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
    low = percentile(sorted(gaps), 0.1)
    return PairwiseComparison(
        method, against, gaps, of_mean_gap(gaps), min(gaps), low, better, len(gaps) - better - worse, worse
    )


def comparison_facts(scenarios: list[ScenarioComparison]) -> dict[str, object]:
    """Return what the page of a comparison shows."""
    return {
        "scenarios": compact([asdict(scenario) for scenario in scenarios]),
        "metric": " or ".join(dict.fromkeys(scenario.metric for scenario in scenarios)),
        "is_share": all(scenario.is_share for scenario in scenarios),
        "method": "",
        "word": "client",
        "titles": {method: title_of(method) for scenario in scenarios for method in scenario.means},
        "clients": [],
        "methods": [],
    }


def compare_runs(folders: Sequence[Path]) -> list[ScenarioComparison]:
    """Sort finished runs by what they were run on, and set their methods against each other."""
    found: dict[tuple[str, str], dict[str, dict[int, Path]]] = {}  # by setting and data, method and seed
    for folder in _runs_in(folders):
        config = read_config(folder)
        run_on = _title(config.setting), read_environment(folder)["data"]["sha256"]
        methods = found.setdefault(run_on, {})
        _check_clients(folder, [runs[config.seed] for runs in methods.values() if config.seed in runs])
        runs = methods.setdefault(method_in_full(config), {})
        known = runs.setdefault(config.seed, folder)
        is_same = known == folder or _accuracies(known) == _accuracies(folder)  # every comparison has training alone
        fault = "have the same method, settings and seed, and ended differently"
        require(is_same, f"{known} and {folder} {fault}: leave one of them out")
    counts = Counter(title for title, _ in found)
    return [
        _measured(
            compare_methods(
                title if counts[title] == 1 else f"{title}, data {digest[:8]}",
                {method: _of_all_seeds(runs) for method, runs in methods.items()},
            ),
            next(run for runs in methods.values() for run in runs.values()),
        )
        for (title, digest), methods in found.items()
    ]


def _measured(scenario: ScenarioComparison, run: Path) -> ScenarioComparison:
    """Say of which metric the figures are, as one of the runs does; those on named data sets have accuracies."""
    environment = read_environment(run)
    is_share = not environment.get("is_of_sets") and all(0 <= mean <= 1 for mean in scenario.means.values())
    return replace(scenario, metric=environment.get("metric", "accuracy"), is_share=is_share)


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
        require(not is_of_sites(folder), f"{folder} is of federate: its own report has all methods side by side")
        parts = sorted(path.parent for path in folder.glob("*-seed-*/config.toml"))
        runs += [folder] if comparison_in(folder) is None else parts
    finished = [run for run in runs if (run / "result.json").exists()]
    require(bool(finished), "none of these runs is finished")
    return finished


def _title(setting: ExperimentConfig) -> str:
    """Say what runs have in common that can be compared: all that decides a result, as far as it is not the default."""
    usual, scenario = ExperimentConfig(), setting.scenario
    if setting.is_own:
        given = replace(comparable(setting), dataset=usual.dataset, rounds=usual.rounds)
        further = [flag.removeprefix("--") for flag in to_cli(given)]
        return f"{Path(setting.dataset).name}: {', '.join([*further, f'{setting.rounds} rounds'])}"
    said = replace(scenario, scenario=usual.scenario.scenario, clients=usual.scenario.clients)
    rest = replace(comparable(setting), scenario=said, rounds=usual.rounds)
    further = [flag.removeprefix("--") for flag in to_cli(rest)]
    parts = [scenario.scenario, f"{scenario.clients} clients", *further, f"{setting.rounds} rounds"]
    return f"{setting.dataset}: {', '.join(parts)}"


def _of_all_seeds(runs: Mapping[int, Path]) -> dict[ClientKey, float]:
    return {(seed, client): value for seed, run in runs.items() for client, value in _accuracies(run).items()}


def _accuracies(folder: Path) -> dict[int, float]:
    """Return the accuracies of those who have test examples."""
    return {client: value for client, value in read_record(folder).figures().items() if math.isfinite(value)}
