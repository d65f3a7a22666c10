"""Your own model and your own data: `federate` takes both and returns a model for every site.

Torch is imported once it is called: a script that imports it and computes nothing should not take seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedfomo.core.method_names import DEFAULT_METHOD
from fedfomo.errors import InputError, require
from fedfomo.runs.config import VALIDATION_FRACTION

if TYPE_CHECKING:
    import torch
    from torch import nn

    from fedfomo.core.algorithm import AnyAlgorithm
    from fedfomo.core.local_training import LocalTrainer
    from fedfomo.core.metrics import Metric, SetMetric
    from fedfomo.core.model import Loss
    from fedfomo.core.own_loop import TrainFunction
    from fedfomo.privacy.config import Privacy
    from fedfomo.runs.federated_statistics import Standardise
    from fedfomo.runs.site_data import Site
    from fedfomo.simulation.callbacks import Callback
    from fedfomo.sites.arguments import NamedMethod
    from fedfomo.sites.result import FederationResult


def federate(
    make_model: Callable[[], nn.Module],
    sites: Mapping[str, Site],
    *,
    method: str | AnyAlgorithm = DEFAULT_METHOD,
    options: Mapping[str, Any] | None = None,
    methods: Mapping[str, NamedMethod] | None = None,
    rounds: int = 20,
    participation: float = 1.0,
    stop_after: int | None = None,
    trainer: LocalTrainer | TrainFunction | None = None,
    share: Sequence[str] = (),
    keep: Sequence[str] = (),
    loss: Loss | str = "classification",
    metric: Metric | None = None,
    metrics: Mapping[str, SetMetric] | None = None,
    primary: str | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
    standardise: bool | Standardise = False,
    seed: int = 0,
    seeds: Sequence[int] | None = None,
    privacy: Privacy | None = None,
    workers: int | None = None,
    device: str | torch.device | None = None,
    baselines: Sequence[str] | str = ("fedavg",),
    out: str | Path | None = None,
    progress: bool | None = None,
    track: Sequence[str] | str = (),
    callback: Callback | None = None,
) -> FederationResult:
    """Let sites learn from each other, each for its own target, and compare with training alone.

    Args:
        make_model: Builds the architecture, any `nn.Module`.
        sites: By name, (train, target) or (train, validation, test), each a pair (inputs, labels), a `Dataset`, read
            lazily, a `DataLoader` with a collate function or workers, or a DataFrame with a column `label`.
        method: The name of a method, "path/to/file.py:Class", or an algorithm object; by default FedFomo+. The
            paper's method is "fedfomo".
        options: Options of the method, where it is given by name.
        methods: Methods under names of your own, in place of method, options and baselines: {"fomo5": ("fedfomo",
            {"num_downloads": 5}), "fedavg": "fedavg"}. The result is that of the first; report and `frame` have all.
        rounds: Communication rounds.
        participation: Share of the sites that take part in a round. Training alone happens in every round.
        stop_after: Rounds without a gain of the primary metric on validation data after which a run stops; the result
            is then that of the best round. By default all rounds are run.
        trainer: How sites train: `Sgd(…)`, the default, `Trainer(…)` with any torch optimiser, or a function
            train(model, data, context) of your own.
        share: Patterns over names of parameters, such as "head.*": what they match travels, all else every site keeps
            for itself. Frozen parameters never travel. By default all that trains is shared.
        keep: Patterns of what every site keeps for itself.
        loss: "classification", "regression" or "multilabel", each with a metric of its own, or a function that returns
            the batch's mean or one value per example.
        metric: A function that returns one value per example, higher being better.
        metrics: Further ones by name, each a function of all outputs and labels that returns one number, higher being
            better, or an object with `reset`, `update` and `compute`.
        primary: The name of the metric that reports and notes go by; by default the first of `metrics`.
        validation_fraction: Share of a (train, target) site's target on which it judges models; the rest is its test.
        standardise: Whether inputs are brought to mean 0 and deviation 1 over all sites' training data, by means and
            deviations alone; with privacy, `Standardise(noise, bounds)`. `result.scaling` does it to other inputs.
        seed: Decides every random draw.
        seeds: Several seeds in place of one: the result is that of the first, its report counts all.
        privacy: Makes training and, if it says so, judgement differentially private.
        workers: Worker processes; by default one per core, 0 for none. No result depends on it.
        device: Where networks compute, such as "cuda"; by default the CPU. On others, sites take turns in one process.
        baselines: Methods to run as well, for the report.
        out: Folder for the runs. The same call with the same folder goes on after an interruption, to the same bits,
            and reads what is finished; without it, nothing is kept.
        progress: Whether to show progress on stderr; by default if that is a terminal.
        track: Trackers to send each round's figures to: tensorboard, mlflow, wandb.
        callback: Is called while the runs go on (`fedfomo.simulation.callbacks.Callback`).

    Returns:
        Models, scores and notes by site; the report is computed when it is asked for.
    """
    from fedfomo.core.device import available_cores, resolve_device, workers_on
    from fedfomo.core.local_training import Sgd
    from fedfomo.core.losses import objective_of
    from fedfomo.core.own_loop import as_trainer
    from fedfomo.privacy.config import Privacy
    from fedfomo.runs.federated_statistics import as_standardise
    from fedfomo.runs.own_sites import write_parts
    from fedfomo.runs.site_data import name_faults, require_sites
    from fedfomo.simulation.config import SimulationConfig
    from fedfomo.sites.arguments import check_types, chosen_seeds, named_methods, planned_methods
    from fedfomo.sites.finish_runs import finish_seed
    from fedfomo.sites.load_sites import encode_frames
    from fedfomo.sites.seed_runs import RunKeeper, prepare_seed

    sites = encode_frames(sites, "numbers" if loss == "regression" else "classes")
    require_sites(sites, validation_fraction)
    for fault in name_faults(sites):
        raise InputError(fault)
    check_types(rounds, participation, seed, workers, trainer, privacy)
    objective = objective_of(loss, metric, metrics, primary)
    trainer, privacy = None if trainer is None else as_trainer(trainer), privacy or Privacy()
    where = resolve_device(device)
    count = workers_on(where, workers, available_cores())
    simulation = SimulationConfig(rounds, participation, 1, count, stop_after=stop_after)
    if methods is None:
        planned = planned_methods(method, options, (baselines,) if isinstance(baselines, str) else baselines)
    else:
        is_alone = method == DEFAULT_METHOD and not options and baselines in ((), ("fedavg",))
        require(is_alone, "methods= names all methods that run: leave out method, options and baselines")
        planned = named_methods(methods)
    call: dict[str, Any] = {"method": planned[0].name, "options": planned[0].options, "rounds": rounds}
    call |= {"participation": participation, "trainer": trainer or Sgd(), "loss": loss, "metric": metric}
    call |= {"validation_fraction": validation_fraction}
    if metrics:
        call |= {"metrics": metrics, "primary": objective.name}
    parts = {name: patterns for name, patterns in (("share", share), ("keep", keep)) if patterns}
    call |= {name: patterns if isinstance(patterns, str) else tuple(patterns) for name, patterns in parts.items()}
    if stop_after is not None:
        call["stop_after"] = stop_after
        require(not privacy.is_on, "stop_after goes by exact scores on validation records, which are private")
    if privacy.is_on:
        call["privacy"] = privacy
    if how := as_standardise(standardise, privacy):
        call["standardise"] = how
    chosen = chosen_seeds(seed, seeds)
    keeper = RunKeeper(out, (track,) if isinstance(track, str) else tuple(track), progress, callback)
    prepared = [
        prepare_seed(
            make_model, sites, objective, trainer, privacy, each, call, planned, simulation, keeper.folder, where
        )
        for each in chosen
    ]
    write_parts(keeper.folder, [method.label for method in planned], chosen, list(sites))
    first, *others = [finish_seed(runs, keeper) for runs in prepared]
    return replace(first, further_seeds={other.seed: other for other in others})
