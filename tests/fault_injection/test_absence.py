"""Clients that fail cost what their absence costs, and no round waits for them or takes them in later."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.client import ClientId
from fedfomo.core.rng import stream
from fedfomo.core.round import configure_clients, run_round
from fedfomo.runs.config import ExperimentConfig
from fedfomo.runs.setup import prepare
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import simulate
from fedfomo.simulation.transport import draw_failures
from in_memory_transport import Answer, make_federation, run_federation
from scorecard import Torture
from toy_problems import ROUNDS, InProcess, KeepLines, digest, federation_of, points_problem

ALLOWED = {0.1: 1.0, 0.3: 2.0, 0.5: 4.0}  # points of accuracy, by the share of clients that fail
Failing = tuple[str, float]
NONE: Failing = ("none", 0.0)
HOPELESS: Failing = ("dropout", 0.95)
SETTINGS = {"dropout": "client_dropout", "lateness": "late_fraction"}
SOONER = {"mocha-linear": {"relate_every": 2}}  # in the few rounds that are run here
ALONE = {"local", "local-all", "mocha-repository"}  # nothing that others upload moves these models
SITES = ("leeds", "turin", "lyon", "porto")
DEADLINE = 1.5  # seconds; within this process sites work while orders are sent


def _play(seeds: range, failing: Mapping[Failing, Mapping[str, float]]) -> tuple[dict[Failing, list[float]], int, int]:
    """Run the demo's clients for each seed and way of failing; count the rounds that closed, and all failures."""
    found: dict[Failing, list[float]] = {way: [] for way in failing}
    lines: list[dict[str, Any]] = []
    for seed in seeds:
        prepared = prepare(ExperimentConfig(workers=0, evaluate_every=100), seed)
        for way, chances in failing.items():
            simulation, algorithm = replace(prepared.simulation, **chances), make_algorithm("fedfomo")
            result = simulate(prepared.problem, algorithm, simulation, callback=KeepLines(lines))
            found[way].append(100 * fmean(score.metric for score in result.after_update.values()))
    failures = sum(len(line.get("dropped", ())) + len(line.get("late", ())) for line in lines)
    return found, len(lines), failures


def test_clients_that_fail_cost_little_accuracy(torture: Torture) -> None:
    seeds = range(torture.repetitions(5))
    shares = ALLOWED if torture.is_full else {0.3: ALLOWED[0.3]}
    ways: dict[Failing, dict[str, float]] = {
        (kind, share): {SETTINGS[kind]: share} for kind in SETTINGS for share in shares
    }
    found, rounds, failures = _play(seeds, {NONE: {}, **ways, HOPELESS: {SETTINGS["dropout"]: HOPELESS[1]}})
    assert rounds == len(seeds) * len(found) * ExperimentConfig.rounds
    assert failures > 0
    lost = {way: fmean(found[NONE]) - fmean(values) for way, values in found.items()}
    assert lost[HOPELESS] > max(ALLOWED.values()), "with next to nobody answering, the same figure must go red"
    words = {
        "dropout": ("06", "clients that drop out cost little accuracy", "fail before they have done anything"),
        "lateness": ("06b", "clients that are late cost little accuracy", "upload after it has closed"),
    }
    for kind, (place, promise, fault) in words.items():
        told = ", ".join(f"{share:.0%}: {-lost[kind, share]:+.2f}" for share in shares)
        torture.record(
            place,
            promise,
            f"10, 30 or 50 % of the clients of every round {fault} (digits, 15 clients, FedFomo, {len(seeds)} seeds)",
            f"accuracy of {fmean(found[NONE]):.1f} % changes by, in points: {told}"
            f" (allowed: −{' / −'.join(f'{points:g}' for points in shares.values())}); every round closed",
            all(lost[kind, share] <= points for share, points in shares.items()),
            accuracies={f"{way} {share:g}": values for (way, share), values in found.items()},
            lost_with_95_percent_absent=lost[HOPELESS],
        )


class _Mixing(InProcess):
    """What nobody may do: take late uploads for those of the next round."""

    kept: Mapping[ClientId, Any] = {}

    def __call__(self, round: int, downloads: Mapping[ClientId, Any]) -> Any:
        late, self.unheard = self.unheard, ()
        uploads = dict(super().__call__(round, downloads))
        overdue, self.kept = self.kept, {n: uploads.pop(n) for n in late if n in uploads}
        return {**uploads, **{n: upload for n, upload in overdue.items() if n in downloads}}.items()


def _models(problem: FederatedProblem, algorithm: AnyAlgorithm, plan: SimulationConfig, exchange: InProcess) -> str:
    """Run the configured rounds in a plain loop that drops what late clients upload."""
    problem = problem.split(algorithm)
    federation = federation_of(problem, algorithm)
    state = algorithm.start_server(problem.start(plan.rounds))
    for t in range(plan.rounds):
        failures = draw_failures(range(6), 6, plan.client_dropout, plan.late_fraction, problem.seed, t)
        exchange.unheard = failures.late
        cohort = [n for n in range(6) if n not in failures.dropped]
        state = run_round(federation, state, t, cohort, exchange).state
    for n, download in configure_clients(federation, state, plan.rounds, range(6)).items():
        exchange.personalise(plan.rounds, n, download)
    return digest(exchange.personalised)


def test_a_late_upload_is_never_mixed_in(torture: Torture) -> None:
    methods = list(ALGORITHMS)[:: 1 if torture.is_full else 10]
    problem, plan = points_problem(), SimulationConfig(rounds=ROUNDS, client_dropout=0.2, late_fraction=0.4)
    same, told_apart = 0, set[str]()
    for name in methods:
        algorithm = make_algorithm(name, SOONER.get(name))
        played = digest(simulate(problem, algorithm, plan).models)
        same += played == _models(problem, algorithm, plan, InProcess(problem, algorithm))
        if played != _models(problem, algorithm, plan, _Mixing(problem, algorithm)):
            told_apart.add(name)
    assert told_apart >= set(methods) - ALONE, "late uploads that are mixed in must show"
    torture.record(
        "06c",
        "a late upload is in no round, neither its own nor a later one",
        "20 % of the clients drop out and 40 % are late, with every method",
        f"with {same} of {len(methods)} methods, models are to the bit those of a loop that drops what is late",
        same == len(methods),
        methods=methods,
    )


class _Unreliable:
    """Sites some of whose answers never come, and others a round late."""

    def __init__(self, share: float) -> None:
        self.began: list[float] = []  # when the first order of each round left
        self.silent = self.stale = 0
        self._share = share
        self._fates = stream(0, "unreliable", round(100 * share))
        self._last: dict[str, bytes] = {}

    def __call__(self, site: str, number: int, order: bytes, answer: Answer) -> bytes | None:
        if (number - 1) % len(SITES) == 0:
            self.began.append(time.monotonic())
        before, self._last[site] = self._last.get(site), answer(order)
        if float(torch.rand((), generator=self._fates)) >= self._share:
            return self._last[site]
        if before is None or number % 2:
            self.silent += 1
            return None
        self.stale += 1
        return before


def test_a_federation_closes_its_rounds_at_the_deadline(torture: Torture, tmp_path: Path) -> None:
    rounds = torture.repetitions(20)
    shares = ALLOWED if torture.is_full else {0.5: 0}
    longest: dict[float, float] = {}
    stale = refused = 0
    for share in (0.0, *shares):
        sites = _Unreliable(share)
        folder = make_federation(tmp_path / f"{share:g}", SITES, rounds=rounds, deadline=DEADLINE)
        run_federation(folder, sites)
        lines = [json.loads(line) for line in (folder.server / "run" / "rounds.jsonl").read_text().splitlines()]
        assert [line["round"] for line in lines] == list(range(rounds))
        assert bool(sites.silent + sites.stale) == bool(share)
        assert len(sites.began) > rounds  # some may have been run again, for want of anybody's answer
        longest[share] = max(later - earlier for earlier, later in pairwise(sites.began))
        faults = [fault for line in lines for fault in line["faults"].values()]
        refused += sum("its round is" in fault for fault in faults)
        stale += sites.stale
        assert sum("no answer within" in fault for fault in faults) <= sites.silent
    worst = max(longest.values())
    assert longest[0.0] < worst, "with nobody silent, no round lasts until the deadline"
    torture.record(
        "06d",
        "rounds of a federation close at the deadline with whoever has answered",
        f"10, 30 or 50 % of four sites' answers never come, or come a round late; the deadline is {DEADLINE} s",
        f"all {len(shares) * rounds} rounds closed, the longest after {worst:.1f} s; {refused} late answers refused",
        worst <= DEADLINE + 5 and 0 < refused <= stale,
        longest=longest,
        late_answers_with_those_to_the_last_update=stale,
    )
