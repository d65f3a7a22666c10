"""Clients that give nothing and want attention: many names, inflated reports, what others trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from statistics import fmean
from typing import Any

import pytest
import torch

from attackers import (
    Attack,
    attacked,
    digits,
    drawn,
    inflate,
    one_of_many_names,
    overflow,
    resend_own,
    resend_received,
    resend_with_noise,
    send_untrained_mixture,
    step_from_received,
    with_many_names,
)
from fedfomo.algorithms.fedfomo import FedFomoAsCoded, RobustFedFomo, state
from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult, SimulationConfig, simulate
from scorecard import Torture
from toy_problems import KeepLines, points_problem

CLIENTS, SLOTS = 15, 5
SOON = 3 * CLIENTS // SLOTS  # rounds
SCENARIOS = ("latent", "ood", "dirichlet", "pathological", "iid")

Lines = list[dict[str, Any]]


def logged(problem: FederatedProblem, algorithm: AnyAlgorithm, rounds: int) -> tuple[RunResult, Lines]:
    """Return how a run ended, and the line of its log for every round in which models were sent."""
    lines: Lines = []
    plan = SimulationConfig(rounds, evaluate_every=rounds, vectorise=True)
    result = simulate(problem, algorithm, plan, callback=KeepLines(lines))
    return result, lines[1:]


def sent_to(line: dict[str, Any], client: int) -> set[int]:
    return {giver for giver in line["uploads"][str(client)]["findings.ids"] if giver != client}


def others_than(clients: Sequence[int]) -> list[int]:
    return [client for client in range(CLIENTS) if client not in clients]


def test_many_names_share_one_slot(torture: Torture) -> None:
    seeds = range(torture.repetitions(3))
    most: dict[bool, dict[int, int]] = {False: {}, True: {}}
    met: dict[bool, list[float]] = {False: [], True: []}
    for number, seed, defends in product((1, 2, 3, 4, 5) if torture.is_full else (5,), seeds, (False, True)):
        names = drawn(seed, number)
        honest = others_than(names)
        algorithm = attacked(
            RobustFedFomo(one_slot_for_copies=defends), {name: one_of_many_names(names[0], 1e-3) for name in names}
        )
        _, lines = logged(with_many_names(digits(seed), names), algorithm, SOON + 1)
        slots = max(len(sent_to(line, client) & set(names)) for line in lines for client in honest)
        most[defends][number] = max(slots, most[defends].get(number, 0))
        offered = {client: set[int]().union(*(sent_to(line, client) for line in lines)) for client in honest}
        met[defends].append(fmean(len(offered[client] & set(honest)) / (len(honest) - 1) for client in honest))
    has_landed = all(slots == min(number, SLOTS) for number, slots in most[False].items())
    torture.record(
        "12",
        "an organisation with many names has one voice, if one_slot_for_copies is on",
        f"one of 15 clients sends its model, with noise of 0.1 %, under up to 5 names; {len(seeds)} seeds, M = {SLOTS}",
        f"at most {max(most[True].values())} of {SLOTS} slots (without: {max(most[False].values())});"
        f" within {SOON} rounds a client was sent {100 * fmean(met[True]):.1f} % of all honest others"
        f" (without: {100 * fmean(met[False]):.1f} %), {100 * min(met[True]):.1f} % at worst",
        holds=max(most[True].values()) == 1 and min(met[True]) >= (1 if torture.is_full else 0.9) and has_landed,
        slots={str(defends): slots for defends, slots in most.items()},
        met={str(defends): shares for defends, shares in met.items()},
    )


def test_inflated_reports_stay_in_their_row(torture: Torture, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = range(torture.repetitions(3))
    limit, rounds = 10.0, 20 if torture.is_full else 6
    largest: dict[float, float] = {}
    honest_rows: dict[float, float] = {}
    accuracy: dict[str, list[float]] = {"honest": [], "inflated": [], "clipped": []}
    for seed in seeds:
        liars = drawn(seed, 3)
        honest = others_than(liars)
        attacks = dict.fromkeys(liars, inflate)
        for name, bound, attack in (("honest", 0.0, {}), ("inflated", 0.0, attacks), ("clipped", limit, attacks)):
            result, _ = logged(digits(seed), attacked(RobustFedFomo(weight_limit=bound), attack), rounds)
            assert result.affinity is not None
            rows = result.affinity.dense().abs()
            if attack:
                largest[bound] = max(largest.get(bound, 0.0), float(rows[liars].max()))
                honest_rows[bound] = max(honest_rows.get(bound, 0.0), float(rows[honest].max()))
            accuracy[name].append(100 * fmean(result.after_update[client].metric for client in honest))
    means = {name: fmean(figures) for name, figures in accuracy.items()}

    def survives() -> bool:
        """Let reports add up to more than a number can hold, where the server clusters clients by them."""
        algorithm = attacked(
            FedFomoAsCoded(norm="l2", affinity_update="raw", num_averages=2), dict.fromkeys((0, 1), overflow)
        )
        try:
            result = simulate(points_problem(), algorithm, SimulationConfig(rounds=4))
        except ValueError:  # from whoever is asked to cluster by what is no number
            return False
        return result.affinity is not None and bool(torch.isfinite(result.affinity.values).all())

    is_whole = survives()
    with monkeypatch.context() as patch:
        patch.setattr(state, "LARGEST_WEIGHT", math.inf)
        breaks_without = not survives()
    has_landed = largest[0.0] > 1e9 > honest_rows[0.0]
    torture.record(
        "12b",
        "inflated reports change nobody else's row of P, and weight_limit bounds their own",
        f"3 of 15 clients report +1e9 for everybody, 2 of 6 report 1.7e308; {len(seeds)} seeds",
        f"in the liars' own rows at most {largest[limit]:.1f} (without: {largest[0.0]:.0e}), in all others"
        f" {honest_rows[0.0]:.1f}; honest clients {means['clipped']:.1f} % (unclipped {means['inflated']:.1f} %,"
        f" without lies {means['honest']:.1f} %); what would overflow was refused",
        holds=has_landed
        and largest[limit] < 1e4
        and min(means["inflated"], means["clipped"]) >= means["honest"] - 2
        and is_whole
        and breaks_without,
        largest={str(bound): value for bound, value in largest.items()},
        accuracy=means,
    )


def flagged(lines: Lines, clients: Sequence[int]) -> tuple[int, int]:
    """Count the uploads of some clients, and those of them that were named."""
    return len(lines) * len(clients), sum(
        str(client) in line.get("suspected", {}) for line in lines for client in clients
    )


def test_free_riders_are_named(torture: Torture) -> None:
    seeds = range(torture.repetitions(3))
    rounds = 20 if torture.is_full else 8
    ways: dict[str, Attack] = {
        "as it was": resend_received,
        "after a thousandth of a training": step_from_received,
        "with noise of 0.1 %": resend_with_noise,
    }
    beyond: dict[str, Attack] = {"own last model": resend_own, "untrained mixture": send_untrained_mixture}
    counts: dict[str, list[tuple[int, int]]] = {}
    for seed in seeds:
        riders = drawn(seed, 3)
        for way, attack in {**ways, **(beyond if torture.is_full else {})}.items():
            _, lines = logged(
                digits(seed), attacked(RobustFedFomo(flag_free_riders=True), dict.fromkeys(riders, attack)), rounds
            )
            counts.setdefault(way, []).append(flagged(lines, riders))
            if way in ways:
                counts.setdefault("honest beside them", []).append(flagged(lines, others_than(riders)))
        for scenario in SCENARIOS if torture.is_full else SCENARIOS[:1]:
            _, lines = logged(digits(seed, scenario), RobustFedFomo(flag_free_riders=True), rounds)
            counts.setdefault(f"honest, {scenario}", []).append(flagged(lines, range(CLIENTS)))
    shares = {
        what: 100 * sum(named for _, named in pairs) / sum(total for total, _ in pairs)
        for what, pairs in counts.items()
    }
    named = {way: shares[way] for way in ways}
    mistaken = {what: share for what, share in shares.items() if what.startswith("honest")}
    rest = "; ".join(f"{way}: {shares[way]:.0f} %" for way in beyond if way in shares)
    torture.record(
        "13",
        "free riders are named, if flag_free_riders is on",
        f"3 of 15 clients upload a model that they were sent, or that and a little more; {len(seeds)} seeds",
        f"named: {', '.join(f'{way} {share:.1f} %' for way, share in named.items())}; honest uploads:"
        f" {max(mistaken.values()):.2f} % at most, over {len(mistaken)} settings. {rest}".strip(),
        # A few dozen uploads are too few to see 95 %.
        holds=min(named.values()) >= (95 if torture.is_full else 80) and max(mistaken.values()) <= 1,
        shares=shares,
    )
