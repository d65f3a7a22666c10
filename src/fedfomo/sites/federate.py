"""Your own model and your own data: `federate` takes both and returns a model for every site."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedfomo.algorithms import make_algorithm
from fedfomo.core.data import ClientData, Examples, as_examples, can_contribute
from fedfomo.core.local_training import LocalTrainer, Sgd
from fedfomo.core.losses import objective_of
from fedfomo.core.model import Loss, Metric, Model, Score, prefers_channels_last
from fedfomo.core.rng import layer_rng, stream
from fedfomo.core.round import CommunicationCost
from fedfomo.errors import InputError, require
from fedfomo.io import to_json, write_atomically
from fedfomo.privacy.accountant import EpsilonSpent, describe_privacy
from fedfomo.privacy.config import Privacy
from fedfomo.report.data import ReportData
from fedfomo.report.from_sites import FinishedRuns, Log, site_facts
from fedfomo.report.page import write_report
from fedfomo.report.text import helpers_of
from fedfomo.simulation.callbacks import Watcher
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.simulation.simulate import RunResult, simulate
from fedfomo.sites.duplicates import in_two_parts

Data = Examples | tuple[Tensor, Tensor] | Dataset[Any]
Site = tuple[Data, Data] | tuple[Data, Data, Data]
"""(train, target), of which the target is divided into validation and test; or (train, validation, test)."""

VALIDATION_FRACTION = 0.5  # of a target, unless a caller says otherwise


@dataclass(frozen=True)
class FederationResult:
    """What a federation brought to each site."""

    method: str
    options: Mapping[str, Any]
    sites: tuple[str, ...]
    models: Mapping[str, nn.Module]
    scores: Mapping[str, Score]  # of these models, on each site's test examples
    local_scores: Mapping[str, Score]  # of a model trained at the site alone, for as long
    affinity: Tensor | None  # who values whom: receiver × giver, in the order of `sites`
    taken: Tensor | None  # who has learnt from whom, in the same order; a row adds up to the rounds that mixed
    traffic: CommunicationCost
    notes: tuple[str, ...]
    facts: ReportData  # what the report shows
    spent: Mapping[str, EpsilonSpent] | None = None  # ε of each site's records; None: nothing was private

    @property
    def gains(self) -> dict[str, float]:
        """What each site's metric gained against training alone."""
        return {site: self.scores[site].accuracy - self.local_scores[site].accuracy for site in self.sites}

    def __str__(self) -> str:
        return "\n".join([*self.facts.sentences, *self.notes])

    def report(self, path: str | Path = "report.html") -> Path:
        """Write one HTML file that shows who benefits from whom, and whether federating pays for each site."""
        return write_report(self.facts, Path(path))

    def save(self, folder: str | Path) -> Path:
        """Write one safetensors file per site, loadable with `load_state_dict`, a summary, and the report."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for site, module in self.models.items():
            tensors = {name: tensor.contiguous().clone() for name, tensor in module.state_dict().items()}
            save_file(tensors, folder / f"{site}.safetensors")
        summary = {
            "method": self.method,
            "options": dict(self.options),
            "sites": {
                site: {"federated": self.scores[site].accuracy, "alone": self.local_scores[site].accuracy}
                for site in self.sites
            },
            "affinity": None if self.affinity is None else self.affinity.tolist(),
            "taken": None if self.taken is None else self.taken.tolist(),
            "notes": self.notes,
        }
        write_atomically(folder / "summary.json", to_json(summary, indent=1).encode())
        self.report(folder / "report.html")
        return folder

    def helpers(self, site: str) -> dict[str, float]:
        """Say from which others a site took, and their shares of that, its own model left out; the largest first."""
        if self.taken is None:
            return {}
        return helpers_of(self.taken.tolist(), self.sites, self.sites.index(site))


def federate(
    make_model: Callable[[], nn.Module],
    sites: Mapping[str, Site],
    *,
    method: str = "fedfomo",
    options: Mapping[str, Any] | None = None,
    rounds: int = 20,
    participation: float = 1.0,
    trainer: LocalTrainer | None = None,
    loss: Loss | str = "classification",
    metric: Metric | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
    seed: int = 0,
    privacy: Privacy | None = None,
    workers: int | None = None,
    beside: Sequence[str] = ("fedavg",),
    watcher: Watcher | None = None,
) -> FederationResult:
    """Let sites learn from each other, each for its own target, and compare with training alone.

    `make_model` builds the architecture (any `nn.Module`); `validation_fraction` is the share of a (train, target)
    site's target on which it judges models, the rest being its test. The loss is one of the words classification,
    regression and multilabel, each with a metric of its own, or a function that returns the batch's mean or one value
    per example; the metric returns one value per example, higher being better. `privacy` makes training and, if it
    says so, judgement differentially private. Methods named in `beside` are run as well, for the report.
    """
    require_sites(sites, validation_fraction)
    for fault in name_faults(sites):
        raise InputError(fault)
    names = tuple(sites)
    data = [client_data(name, site, validation_fraction, seed) for name, site in sites.items()]
    with layer_rng(stream(seed, "initial model")):
        module = make_model()
    objective = objective_of(loss, metric)
    model = Model(module, objective.loss, objective.metric, prefers_channels_last(module, _some_inputs(data)))
    problem = FederatedProblem(model, model.read(), data, trainer or Sgd(), seed, privacy=privacy or Privacy())
    for name, own in zip(names, data, strict=True):
        check_data(name, own, model, problem.initial)
    plan = SimulationConfig(rounds, participation, 1, (os.cpu_count() or 1) if workers is None else workers)
    algorithm = make_algorithm(method, options)
    others = {name: make_algorithm(name) for name in beside if name not in (method, "local")}
    log = Log()
    result = simulate(problem, algorithm, plan, watcher=watcher, listener=log.hear)
    plan = replace(plan, evaluate_every=rounds)
    # Alone, everybody trains in every round: with part of the rounds missing, the bar would be too low.
    alone = simulate(problem, make_algorithm("local"), replace(plan, participation=1.0), watcher=watcher)
    results = {name: simulate(problem, other, plan, watcher=watcher) for name, other in others.items()}
    results |= {"local": alone, method: result}
    notes = (*_shortages(names, data), *_leaks(names, data), *_refusals(names, result))
    if result.spent is not None:
        notes += tuple(f"privacy: {sentence}" for sentence in describe_privacy(result.spent, problem.privacy))
    call: dict[str, Any] = {"method": method, "options": dict(options or {}), "rounds": rounds}
    call |= {"participation": participation, "trainer": problem.trainer, "seed": seed}
    call |= {"loss": loss, "metric": metric, "validation_fraction": validation_fraction}
    if problem.privacy.is_on:
        call["privacy"] = problem.privacy
    played = FinishedRuns(names, problem, method, algorithm, results, log, call, objective.name)
    facts, notes = site_facts(played, notes)
    personal = problem.model_of(algorithm)
    return FederationResult(
        method=method,
        options=options or {},
        sites=names,
        models={name: personal.network(result.models[client]) for client, name in enumerate(names)},
        scores={name: result.after_update[client] for client, name in enumerate(names)},
        local_scores={name: alone.after_update[client] for client, name in enumerate(names)},
        affinity=None if result.affinity is None else result.affinity.dense(),
        taken=None if result.taken is None else result.taken.dense(),
        traffic=result.traffic,
        notes=notes,
        facts=facts,
        spent=None if result.spent is None else {names[client]: spent for client, spent in result.spent.items()},
    )


def require_sites(sites: Mapping[str, Site], validation_fraction: float) -> None:
    """Refuse what is no mapping of sites at all, and a division that is none."""
    require(isinstance(sites, Mapping) and len(sites) > 0, "give sites as {name: (train, target)}, at least one")  # pyright: ignore[reportUnnecessaryIsInstance]
    odd = [name for name in sites if not isinstance(name, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
    require(not odd, f"names of sites are texts, not {odd}")
    require(0 < validation_fraction < 1, f"validation_fraction must be between 0 and 1, not {validation_fraction}")


def client_data(name: str, site: Site, validation_fraction: float, seed: int) -> ClientData:
    """Read a site's parts, and divide a target into validation and test if it comes in one."""
    is_site = isinstance(site, tuple | list) and len(site) in (2, 3)  # pyright: ignore[reportUnnecessaryIsInstance]
    require(is_site, f"site '{name}': give (train, target) or (train, validation, test)")
    if any(isinstance(part, Tensor) for part in site):
        raise InputError(f"site '{name}': each of train and target is a pair (inputs, labels): give ((x, y), (x, y))")
    try:
        parts = [as_examples(part) for part in site]
    except InputError as error:
        raise InputError(f"site '{name}': {error}") from None
    if len(parts) == 3:
        return ClientData(*parts)
    train, target = parts
    order = torch.randperm(len(target), generator=stream(seed, "target division", name))
    cut = min(max(1, round(validation_fraction * len(target))), max(1, len(target) - 1))  # of two or more, one for each
    return ClientData(train, target.take(order[:cut]), target.take(order[cut:]))


def name_faults(sites: Mapping[str, Site]) -> Iterator[str]:
    """Find names that cannot name files, or would name the same."""
    for name in sites:
        if not re.fullmatch(r"[^/\\\x00-\x1f]+", name) or name.startswith("."):
            yield f"site name '{name}' cannot name a file: leave out slashes and leading dots"
    if len({name.casefold() for name in sites}) < len(sites):
        yield "two sites differ in upper and lower case only: their files would overwrite each other"


def data_faults(name: str, data: ClientData, model: Model | None, initial: Tensor | None) -> Iterator[str]:
    """Find what would fail, or mislead, after an hour: in the data themselves, and where there is a model, with it."""
    for part, examples in (("training", data.train), ("validation", data.validation), ("test", data.test)):
        if len(examples) == 0:
            continue
        for what, tensor in (("inputs", examples.inputs), ("labels", examples.labels)):
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                yield f"site '{name}': its {part} {what} hold values that are not finite"
        if model is not None and initial is not None:
            try:
                model.check_examples(initial, examples)
            except InputError as error:
                yield f"site '{name}', {part} data: {error}"


def check_data(name: str, data: ClientData, model: Model, initial: Tensor) -> None:
    """Refuse the first fault before anything is computed."""
    for fault in data_faults(name, data, model, initial):
        raise InputError(fault)


def _refusals(names: tuple[str, ...], result: RunResult) -> list[str]:
    return [
        f"note: {names[client]}'s model was refused in {number} rounds, most likely because it was not finite"
        for client, number in sorted(result.refusals.items())
    ]


def _leaks(names: tuple[str, ...], data: list[ClientData]) -> list[str]:
    return [
        f"note: {number} samples of {name}'s test data are in its {part} data as well: its figures are too good"
        for name, own in zip(names, data, strict=True)
        for part, other, number in in_two_parts(own)
        if other == "test"
    ]


def _some_inputs(data: list[ClientData]) -> Tensor:
    return max((part.inputs for own in data for part in (own.train, own.validation)), key=len)


def _shortages(names: tuple[str, ...], data: list[ClientData]) -> list[str]:
    return [
        f"note: {name} has {len(own.train)} training and {len(own.validation)} validation examples:"
        " it receives models but contributes none"
        for name, own in zip(names, data, strict=True)
        if not can_contribute(own)
    ]
