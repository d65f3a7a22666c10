"""Clients with next to no data, or with odd ones: every method runs, splits stay apart, and figures say of how many."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fedfomo
from fedfomo.algorithms import ALGORITHMS, make_algorithm
from fedfomo.core.data import ClientData, Examples, can_contribute
from fedfomo.core.local_training import Sgd
from fedfomo.core.model import Model
from fedfomo.core.networks import NETWORKS
from fedfomo.core.rng import stream
from fedfomo.datasets.bundled import load_digits
from fedfomo.datasets.config import SCENARIOS, ScenarioConfig
from fedfomo.datasets.partitions import training_size
from fedfomo.datasets.scenarios import build_scenario, partition_data
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult, SimulationConfig, simulate
from scorecard import Torture
from toy_problems import initialised, perceptron, points, with_batch_norm, with_dropout

Oddity = Callable[[ClientData], ClientData]


def _relabelled(label: int | None) -> Oddity:
    """Give all examples one label; None: every client one of its own, whatever its points say."""

    def change(data: ClientData) -> ClientData:
        def one(part: Examples) -> Examples:
            return Examples(part.inputs, torch.full_like(part.labels, len(data.train) % 3 if label is None else label))

        return ClientData(one(data.train), one(data.validation), one(data.test))

    return change


def _nothing(part: Examples) -> Examples:
    return part.take(torch.empty(0, dtype=torch.int64))


ODDITIES: Mapping[str, Oddity] = {
    "as they are": lambda data: data,
    "all labels equal": _relabelled(0),
    "one class each": _relabelled(None),
    "no validation": lambda data: replace(data, validation=_nothing(data.validation)),
    "no training": lambda data: replace(data, train=_nothing(data.train)),
    "no test": lambda data: replace(data, test=_nothing(data.test)),
    "equal inputs": lambda data: replace(data, train=Examples(torch.zeros_like(data.train.inputs), data.train.labels)),
}
NETWORKS_HERE = {"perceptron": perceptron, "batch norm": with_batch_norm, "dropout": with_dropout}
TRAINERS = {"batches of 1": 1, "batches of 3": 3, "batches of 19, so that 20 leaves one": 19, "batches of 500": 500}


def small_clients(sizes: range, oddity: Oddity, build: Any, batch_size: int) -> FederatedProblem:
    """Return a federation with one client of every size, split into training and validation as scenarios do."""
    clients: list[ClientData] = []
    for size in sizes:
        rng = stream(3, "small", size)
        train = training_size(size, 0.2)
        clients.append(oddity(ClientData(*(points(n, size, rng) for n in (train, size - train, size % 5)))))
    model = initialised(build)
    groups = tuple(client % 2 for client in range(len(clients)))
    return FederatedProblem(model, model.read(), clients, Sgd(batch_size=batch_size, epochs=1), 0, groups)


def _faults(problem: FederatedProblem, result: RunResult) -> list[str]:
    found: list[str] = []
    for client, data in enumerate(problem.clients):
        score, size = result.after_update[client], len(data.test)
        if not bool(torch.isfinite(result.models[client]).all()):
            found.append(f"client {client}'s model is not finite")
        if score.num_examples != size or math.isnan(score.metric) != (size == 0):
            found.append(f"client {client}'s score is of {score.num_examples} examples, not {size}")
        if result.affinity is not None and not can_contribute(data):
            row = result.affinity.dense()[client]
            if not torch.equal(row, torch.eye(len(row))[client].double()):
                found.append(f"client {client} cannot contribute and has a say in P")
    return found


def test_every_method_takes_clients_of_0_to_20_examples(torture: Torture) -> None:
    sizes = range(21) if torture.is_full else range(0, 21, 5)
    kinds = [(o, n, b) for o in ODDITIES for n in NETWORKS_HERE for b in TRAINERS]
    runs, faults = 0, list[str]()
    for number, name in enumerate(ALGORITHMS):
        chosen = [kinds[(number + step * 5) % len(kinds)] for step in range(torture.repetitions(10))]
        for oddity, network, batches in chosen:
            problem = small_clients(sizes, ODDITIES[oddity], NETWORKS_HERE[network], TRAINERS[batches])
            where = f"{name}, {oddity}, {network}, {batches}"
            try:
                result = simulate(problem, make_algorithm(name), SimulationConfig(rounds=2))
            except Exception as error:  # what this row is about
                faults.append(f"{where}: {error!r}")
            else:
                faults += [f"{where}: {fault}" for fault in _faults(problem, result)]
            runs += 1
    federations = _federated(torture)
    scenarios, overlaps = _spread(torture)
    twin = _validation_that_overlaps()
    torture.record(
        "09",
        "Clients with next to no data run, receive, and never mislead",
        f"{runs} runs of all {len(ALGORITHMS)} methods with clients of 0 to 20 examples (one class, equal labels, no"
        " training, validation or test data, batches of 1 to 500, BatchNorm), "
        f"{len(federations)} calls of federate, {scenarios} ways to spread digits",
        f"{len(faults) + sum(map(bool, federations))} crashes or faults; {overlaps} examples are both trained and"
        " judged on; who has no data to judge by leaves no mark in P",
        not faults and not any(federations) and overlaps == 0 and twin > 0,
        faults=faults[:20],
        federations=[fault for fault in federations if fault][:20],
    )


def _federated(torture: Torture) -> list[str]:
    """Let `federate` meet every small size once, and say what went wrong in each call."""
    outcomes: list[str] = []
    names = list(ALGORITHMS)
    for number in range(30 if torture.is_full else 1):
        rng = stream(number, "sites")
        sizes = [(number * 7 + step * 3) % 21 for step in range(4)]
        sites = {f"site {n}": (_pair(size, n, rng), _pair((size + n) % 21, n, rng)) for n, size in enumerate(sizes)}
        build = list(NETWORKS_HERE.values())[number % 3]
        method = [name for name in names if name != "oracle"][number % (len(names) - 1)]
        try:
            found = fedfomo.federate(build, sites, method=method, rounds=2, workers=0, trainer=Sgd(epochs=1))
            scores = {name: found.scores[name].num_examples for name in sites}
            tests = {name: _test_size(len(target[1])) for name, (_, target) in sites.items()}
            outcomes.append("" if scores == tests and str(found) else f"{method}: {scores} instead of {tests}")
        except Exception as error:  # what this row is about
            outcomes.append(f"{method}, {sizes}: {error!r}")
    return outcomes


def _pair(size: int, centre: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    drawn = points(size, centre, rng)
    return drawn.inputs, drawn.labels


def _test_size(target: int) -> int:
    return target - min(max(1, round(target / 2)), target)


def _spread(torture: Torture) -> tuple[int, int]:
    """Spread digits over more clients than it is good for; count examples that anybody trains and anybody judges on."""
    data = load_digits()
    count = overlaps = 0
    for scenario in SCENARIOS:
        for clients in (1, 7, 300, 700, 1437) if torture.is_full else (300,):
            for fraction in (0.01, 0.2, 0.99):
                config = ScenarioConfig(scenario, clients, alpha=0.01, validation_fraction=fraction)
                partition = partition_data(config, data, seed=clients)
                trained = np.concatenate([client.train for client in partition.clients])
                judged = np.concatenate([client.validation for client in partition.clients])
                overlaps += len(np.intersect1d(trained, judged)) + len(trained) - len(np.unique(trained))
                count += 1
    crowded = build_scenario(ScenarioConfig("dirichlet", 400, alpha=0.05), data, seed=0)
    model = Model(NETWORKS["mlp"]((1, 8, 8), 10))
    problem = FederatedProblem(model, model.read(), crowded.clients, Sgd(epochs=1), 0)
    assert (
        _faults(problem, simulate(problem, make_algorithm("fedfomo"), SimulationConfig(rounds=1, vectorise=True))) == []
    )
    return count, overlaps


def _validation_that_overlaps() -> int:
    """Count the overlap of a split as it is often written, train[:-int(0.2 n)], to see that counting sees it."""
    examples = np.arange(4)
    cut = -int(0.2 * len(examples))
    trained, judged = examples[: cut or None], examples[cut:]
    return len(np.intersect1d(trained, judged))
