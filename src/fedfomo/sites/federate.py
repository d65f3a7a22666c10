"""Your own model and your own data: `federate` takes both and returns a model for every site."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from safetensors.torch import save_file
from torch import Tensor, nn

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.data import ClientData
from fedfomo.core.device import resolve_device, workers_on
from fedfomo.core.local_training import LocalTrainer, Sgd
from fedfomo.core.losses import Objective, objective_of
from fedfomo.core.metrics import Metric, Score, SetMetric
from fedfomo.core.model import Loss
from fedfomo.core.own_loop import TrainFunction, as_trainer, refuse_ignored_training
from fedfomo.core.rng import stream
from fedfomo.core.round import CommunicationCost, cohort_size
from fedfomo.errors import InputError, require, unknown
from fedfomo.io import to_json, write_atomically
from fedfomo.privacy.accountant import EpsilonSpent, describe_privacy
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.private_data import SeededNoise
from fedfomo.report.build import build_report_data
from fedfomo.report.data import ReportData
from fedfomo.report.from_run import load, scores_of_run
from fedfomo.report.page import write_report
from fedfomo.report.text import contributors_of
from fedfomo.runs.callbacks import RunBar, track_run
from fedfomo.runs.config import label_of
from fedfomo.runs.federated_statistics import Scaling, Standardise, as_standardise, scaled_alike
from fedfomo.runs.frame import frame_of
from fedfomo.runs.own_sites import (
    SitesConfig,
    check_same_call,
    digest_of,
    require_folder_of_sites,
    sites_environment,
    spell,
    write_parts,
)
from fedfomo.runs.provenance import label_counts, method_file
from fedfomo.runs.records import RunRecord, load_models
from fedfomo.runs.run import PreparedRun, finish_prepared
from fedfomo.runs.site_data import (
    VALIDATION_FRACTION,
    Data,
    Site,
    build_model,
    build_module,
    check_data,
    client_data,
    lacks_test,
    leaks,
    name_faults,
    receives_only,
    require_sites,
)
from fedfomo.simulation.callbacks import Callback, Callbacks
from fedfomo.simulation.config import SimulationConfig
from fedfomo.simulation.problem import FederatedProblem
from fedfomo.sites.arguments import (
    NamedMethod,
    PlannedMethod,
    check_types,
    chosen_seeds,
    named_methods,
    planned_methods,
)
from fedfomo.sites.load_sites import encode_frames
from fedfomo.sites.serve import Served, models_of, serve_site

T = TypeVar("T")


@dataclass(frozen=True)
class FederationResult:
    """What a federation brought to each site."""

    method: str
    options: Mapping[str, Any]
    sites: tuple[str, ...]
    seed: int
    models: Mapping[str, nn.Module]
    scores: Mapping[str, Score]  # of these models, on each site's test examples
    local_scores: Mapping[str, Score]  # of a model trained at the site alone, in every round
    affinity: Tensor | None  # who values whom: receiver × giver, in the order of `sites`
    mixing: Tensor | None  # who has learnt from whom, in the same order; a row adds up to the rounds that mixed
    traffic: CommunicationCost
    notes: tuple[str, ...]
    folder: Path  # of the method's run; without `out`, it lasts as long as this object
    spent: Mapping[str, EpsilonSpent] | None = None  # ε of each site's records; None: nothing was private
    further_seeds: Mapping[int, FederationResult] = field(default_factory=dict[int, "FederationResult"])
    _runs: _Runs | None = field(default=None, repr=False)

    @property
    def scaling(self) -> Scaling | None:
        """What was done to all inputs, and is to be done to others before a model meets them; None: nothing."""
        return None if self._runs is None else self._runs.scaling

    @property
    def gains(self) -> dict[str, float]:
        """What each site's metric gained against training alone."""
        return {site: self.scores[site].metric - self.local_scores[site].metric for site in self.sites}

    def __str__(self) -> str:
        return "\n".join([*self._without_crossing.lines, *self.notes])

    @cached_property
    def report_data(self) -> ReportData:
        """What the report shows; computed when it is asked for, since every model is tried on every site's test."""
        return self._build(crosses=True)

    @cached_property
    def _without_crossing(self) -> ReportData:
        return self._build(crosses=False)

    def _build(self, crosses: bool) -> ReportData:
        runs = self._runs
        assert runs is not None  # noqa: S101 - only `federate` makes results
        try:
            return build_report_data(load(self.folder, (), runs.problem, runs.algorithms, crosses))
        except Exception as error:  # whatever a user's own metric raises: scores at least can be shown
            reason = InputError(f"trying the models failed ({type(error).__name__}: {error})")
            warnings.warn(f"the report holds scores alone, since {reason}", stacklevel=2)
            return build_report_data(load(self.folder, (), reason, runs.algorithms))

    def serve(self, new_site: Site | Data) -> Served:
        """Weigh the models for a site that was not there, in one pass over its validation data.

        `new_site` is what `federate` takes for a site, or its validation data alone.
        """
        runs = self._runs
        assert runs is not None  # noqa: S101 - only `federate` makes results
        personal = runs.problem.model_of(runs.prepared[self.folder].algorithm)
        return serve_site(personal, models_of(self.folder, personal, self.sites), new_site, self.scaling)

    def frame(self) -> Any:
        """Return every figure of every site, round, method and seed as a tidy pandas DataFrame."""
        runs = self._runs
        assert runs is not None  # noqa: S101 - only `federate` makes results
        folders = [folder for own in (self, *self.further_seeds.values()) if own._runs for folder in own._runs.prepared]
        return frame_of(folders)

    def report(self, path: str | Path = "report.html") -> Path:
        """Write one HTML file that shows who benefits from whom, and whether federating pays for each site."""
        return write_report(self.report_data, Path(path))

    def save(self, folder: str | Path) -> Path:
        """Write one safetensors file per site, loadable with `load_state_dict`, a summary, and the report."""
        folder = Path(folder)
        require(not folder.is_file(), f"{folder} is a file: give a folder for the models, the summary and the report")
        folder.mkdir(parents=True, exist_ok=True)
        for site, module in self.models.items():
            tensors = {name: tensor.contiguous().clone() for name, tensor in module.state_dict().items()}
            save_file(tensors, folder / f"{site}.safetensors")
        summary = {
            "method": self.method,
            "options": dict(self.options),
            "sites": {
                site: {"federated": self.scores[site].metric, "alone": self.local_scores[site].metric}
                for site in self.sites
            },
            "affinity": None if self.affinity is None else self.affinity.tolist(),
            "taken": None if self.mixing is None else self.mixing.tolist(),
            "notes": self.notes,
        }
        write_atomically(folder / "summary.json", to_json(summary, indent=1).encode())
        self.report(folder / "report.html")
        return folder

    def contributors(self, site: str) -> dict[str, float]:
        """Return from which others a site took models, and their shares of that; the largest first."""
        if site not in self.sites:
            raise unknown("site", site, self.sites)
        if self.mixing is None:
            return {}
        return contributors_of(self.mixing.tolist(), self.sites, self.sites.index(site))


def federate(
    make_model: Callable[[], nn.Module],
    sites: Mapping[str, Site],
    *,
    method: str | AnyAlgorithm = "fedfomo",
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
        method: The name of a method, "path/to/file.py:Class", or an algorithm object.
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
    sites = encode_frames(sites, "numbers" if loss == "regression" else "classes")
    require_sites(sites, validation_fraction)
    for fault in name_faults(sites):
        raise InputError(fault)
    check_types(rounds, participation, seed, workers, trainer, privacy)
    objective = objective_of(loss, metric, metrics, primary)
    trainer, privacy = None if trainer is None else as_trainer(trainer), privacy or Privacy()
    where = resolve_device(device)
    count = workers_on(where, workers, os.cpu_count() or 1)
    simulation = SimulationConfig(rounds, participation, 1, count, stop_after=stop_after)
    if methods is None:
        planned = planned_methods(method, options, (baselines,) if isinstance(baselines, str) else baselines)
    else:
        is_alone = method == "fedfomo" and not options and baselines in ((), ("fedavg",))
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
    if how := as_standardise(standardise):
        way_out = "give standardise=Standardise(noise=..., bounds=(least, greatest))"
        require(bool(how.noise) or not privacy.is_on, f"means of private records would leave without noise: {way_out}")
        call["standardise"] = how
    chosen = chosen_seeds(seed, seeds)
    keeper = _Keeper(out, (track,) if isinstance(track, str) else tuple(track), progress, callback)
    prepared = [
        _prepare(make_model, sites, objective, trainer, privacy, each, call, planned, simulation, keeper.folder, where)
        for each in chosen
    ]
    write_parts(keeper.folder, [method.label for method in planned], chosen, list(sites))
    first, *others = [_play(runs, keeper) for runs in prepared]
    return replace(first, further_seeds={other.seed: other for other in others})


class _Keeper:
    """Where runs are kept, and who is told of them; a folder that nobody asked for goes with this object."""

    def __init__(
        self, out: str | Path | None, track: tuple[str, ...], progress: bool | None, callback: Callback | None
    ) -> None:
        self.track = track
        self.callback = callback
        self.is_kept = out is not None
        self.console = Console(stderr=True, highlight=False)
        self.shows_progress = sys.stderr.isatty() if progress is None else progress
        if out is None:
            require(not track, "trackers keep what a run tells: give a folder in out= as well")
            self.folder = Path(tempfile.mkdtemp(prefix="fedfomo-"))
            weakref.finalize(self, _remove, self.folder, os.getpid())
        else:
            self.folder = Path(out)
            require_folder_of_sites(self.folder)
            self.folder.mkdir(parents=True, exist_ok=True)


@dataclass(frozen=True)
class _Runs:
    """The runs of one seed: what a report of them needs that is not in their folders."""

    names: tuple[str, ...]
    problem: FederatedProblem
    prepared: Mapping[Path, PreparedRun]
    notes: tuple[str, ...]
    scaling: Scaling | None = None
    keeper: _Keeper | None = None  # kept as long as the result is, for the sake of its folder

    @property
    def algorithms(self) -> dict[Path, AnyAlgorithm]:
        return {folder: run.algorithm for folder, run in self.prepared.items()}


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # not a worker process
        shutil.rmtree(folder, ignore_errors=True)


def _prepare(
    make_model: Callable[[], nn.Module],
    sites: Mapping[str, Site],
    objective: Objective,
    trainer: LocalTrainer | None,
    privacy: Privacy,
    seed: int,
    call: Mapping[str, Any],
    methods: Sequence[PlannedMethod],
    simulation: SimulationConfig,
    out: Path,
    device: torch.device,
) -> _Runs:
    """Read the data, build the model, and refuse whatever would fail or was begun otherwise, before anything is run."""
    names = tuple(sites)
    data = [client_data(name, site, call["validation_fraction"], seed) for name, site in sites.items()]
    scaling: Scaling | None = None
    if "standardise" in call:
        data, scaling = scaled_alike(data, call["standardise"], SeededNoise(stream(seed, "statistics")))
    module = build_module(make_model, seed)
    if trainer is None:
        refuse_ignored_training(module)
    trainer = trainer or Sgd()
    model = build_model(module, objective, data, device)
    problem = FederatedProblem(model, model.read(), data, trainer, seed, privacy=privacy)
    problem = replace(problem, share=call.get("share", ()), keep=call.get("keep", ()))
    for name, own in zip(names, data, strict=True):
        check_data(name, own, model, problem.initial)
    notes = tuple(note for name, own in zip(names, data, strict=True) for note in _notes(name, own))
    # How many of which label a site holds is not for the folder or the page of a private run.
    labels = None if privacy.is_on else label_counts(data)
    environment = sites_environment(names, problem, labels, notes)
    if scaling is not None:
        environment["scaling"] = vars(scaling)
    for each in methods:
        problem.check(each.algorithm)
    prepared: dict[Path, PreparedRun] = {}
    for each in methods:
        # Alone, everybody trains in every round: with part of the rounds missing, the bar would be too low.
        share = 1.0 if each.name == "local" else simulation.participation
        is_main = each is methods[0]
        config = SitesConfig(
            call=_spelled_call({**call, "method": each.name, "options": each.options, "seed": seed}),
            method=each.name,
            options={name: _plain(value) for name, value in each.options.items()},
            seed=seed,
            rounds=simulation.rounds,
            participation=share,
            validation_fraction=call["validation_fraction"],
            trainer=spell(trainer),
            loss=_plain(call["loss"]),
            metric=objective.name,
            privacy={name: value for name, value in vars(privacy).items() if value is not None},
            sites=list(names),
            metrics=list(objective.metrics.of_sets),
            share=list(problem.share),
            keep=list(problem.keep),
            stop_after=simulation.stop_after or 0,
        )
        folder = out / f"{each.label}-seed-{seed}"
        check_same_call(folder, config, environment)
        prepared[folder] = PreparedRun(
            method=label_of(each.name),
            options=config.options,
            seed=seed,
            algorithm=each.algorithm,
            problem=problem,
            simulation=replace(simulation, participation=share, evaluate_every=1 if is_main else simulation.rounds),
            config=config.as_toml(),
            environment={**environment, **method_file(each.name)},
            digest=digest_of(config, environment),
        )
    return _Runs(names, problem, prepared, notes, scaling)


def _notes(name: str, data: ClientData) -> list[str]:
    return [*receives_only(name, data), *lacks_test(name, data), *leaks(name, data, into="test")]


def _plain(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) else spell(value)


def _spelled_call(arguments: Mapping[str, Any]) -> str:
    return (
        f"fedfomo.federate(make_model, sites, {', '.join(f'{key}={spell(value)}' for key, value in arguments.items())})"
    )


def _play(runs: _Runs, keeper: _Keeper) -> FederationResult:
    """Finish the runs of one seed."""
    records = {folder: _run_one(folder, run, keeper) for folder, run in runs.prepared.items()}
    if keeper.is_kept:
        _keep_scores(runs, records)
    (folder, run), *_ = runs.prepared.items()
    record = records[folder]
    alone = next(own for own in reversed(records.values()) if own.method == "local")
    personal = runs.problem.model_of(run.algorithm)
    thetas = load_models(folder, personal, record)
    require(thetas is not None, f"{folder} lacks models of a finished run: delete it, and it is run again")
    notes = [f"note: {note}" for note in runs.notes]
    notes += [
        f"note: {runs.names[client]}'s model was refused in {number} rounds, most likely because it was not finite"
        for client, number in sorted(record.refusals.items())
    ]
    if record.best_round is not None:
        notes.append(f"note: models are those of round {record.best_round}, the best on validation data")
    if record.spent is not None:
        notes += [f"privacy: {sentence}" for sentence in describe_privacy(record.spent, runs.problem.privacy)]
    return FederationResult(
        method=run.method,
        options=run.options,
        sites=runs.names,
        seed=run.seed,
        models={name: personal.network(theta) for name, theta in zip(runs.names, thetas or [], strict=True)},
        scores=_by_name(runs.names, record.after_update),
        local_scores=_by_name(runs.names, alone.after_update),
        affinity=_matrix(record.affinity),
        mixing=_matrix(record.taken),
        traffic=record.traffic,
        notes=tuple(notes),
        folder=folder,
        spent=None if record.spent is None else _by_name(runs.names, record.spent),
        _runs=replace(runs, keeper=keeper),
    )


def _keep_scores(runs: _Runs, records: Mapping[Path, RunRecord]) -> None:
    """Keep scores of single examples with each run: `fedfomo report` pairs by them, and has no data to find them."""
    for folder, record in records.items():
        try:
            scores_of_run(folder, record, runs.problem, runs.prepared[folder].algorithm)
        except Exception as error:  # whatever a user's own metric raises: the models are worth more
            warnings.warn(f"{folder} has no scores of single examples ({type(error).__name__}: {error})", stacklevel=2)


def _run_one(folder: Path, run: PreparedRun, keeper: _Keeper) -> RunRecord:
    folder.mkdir(exist_ok=True)
    sites = len(run.problem.clients)
    title = f"{folder.name.replace('-seed-', ', seed ')}"
    bar = RunBar(keeper.console, title, run.simulation.rounds, cohort_size(sites, run.simulation.participation), sites)
    shown = bar if keeper.shows_progress else nullcontext()
    facts = {"method": run.method, "seed": run.seed, "rounds": run.simulation.rounds, **run.options}
    with shown, track_run(keeper.track, folder, facts, warnings.warn) as tracked:
        callback = Callbacks(tracked, bar if keeper.shows_progress else None, keeper.callback)
        return finish_prepared(folder, run, callback, warnings.warn)


def _by_name(names: Sequence[str], values: Mapping[int, T]) -> dict[str, T]:
    return {name: values[client] for client, name in enumerate(names)}


def _matrix(rows: list[list[float]] | None) -> Tensor | None:
    return None if rows is None else torch.tensor(rows, dtype=torch.float64)
