"""Runs on a user's own sites: what their folders say, and whether a call is the one that a folder was begun with."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import tomli_w
import torch
from torch import nn

from fedfomo.core.data import ClientData
from fedfomo.core.determinism import one_torch_thread
from fedfomo.core.device import Precision
from fedfomo.core.lazy_data import LazyExamples
from fedfomo.core.local_training import LocalTrainer, Sgd
from fedfomo.core.losses import Objective
from fedfomo.core.own_loop import OwnLoop, refuse_ignored_training
from fedfomo.core.parameters import frozen_digests
from fedfomo.core.rng import layer_rng, stream
from fedfomo.datasets.bundled import fingerprint
from fedfomo.errors import listed, reading, require
from fedfomo.io import write_atomically
from fedfomo.privacy.config import Privacy
from fedfomo.privacy.private_data import SeededNoise, SystemNoise
from fedfomo.runs.config_io import load_toml
from fedfomo.runs.federated_statistics import Scaling, Standardise, begun_scaling, scaled_alike
from fedfomo.runs.provenance import (
    check_method_file,
    example_counts,
    label_counts,
    machine,
    method_file,
    read_environment,
)
from fedfomo.runs.site_data import Site, build_model, build_module, check_data, client_data, notes_of
from fedfomo.simulation.problem import FederatedProblem

MOST_PROBED = 20  # sites on which a model is tried, to notice another model, loss or metric
PROBES = 8  # examples of each


@dataclass(frozen=True)
class SitesConfig:
    """What `federate` was asked for, as config.toml keeps it in the folder of one run."""

    call: str  # in Python
    method: str
    options: dict[str, Any]
    seed: int
    rounds: int
    participation: float
    validation_fraction: float
    trainer: str
    loss: str
    metric: str
    privacy: dict[str, Any]
    sites: list[str]
    metrics: list[str] = field(default_factory=list[str])  # of all outputs at once; the one that leads is `metric`
    share: list[str] = field(default_factory=list[str])
    keep: list[str] = field(default_factory=list[str])
    stop_after: int = 0  # rounds without a gain on validation data; 0: never

    def as_toml(self) -> str:
        """Spell it out for config.toml."""
        return tomli_w.dumps(asdict(self))

    @property
    def privacy_settings(self) -> Privacy:
        """What was asked for in the way of privacy."""
        return Privacy(**self.privacy)


def is_of_sites(folder: Path) -> bool:
    """Tell whether a run, or a folder of runs, is on a user's own sites."""
    path = folder / "config.toml"
    return path.exists() and "sites" in load_toml(path)


def way_to_resume(folder: Path) -> str:
    """Say what goes on with a run, or with a folder of runs, that was stopped."""
    return "the same call of federate with the same out=" if is_of_sites(folder) else f"`fedfomo resume {folder}`"


def read_sites_config(folder: Path) -> SitesConfig:
    """Read what a run on own sites was asked for."""
    path = folder / "config.toml"
    with reading(path, "start the run again, in another folder"):
        return SitesConfig(**load_toml(path))


def check_same_call(folder: Path, config: SitesConfig, environment: Mapping[str, Any]) -> None:
    """Refuse to go on with a run that was begun with other settings, data or model, and name what differs."""
    if not (folder / "environment.json").exists():
        return
    check_method_file(folder, config.method)
    begun, then = read_sites_config(folder), read_environment(folder)
    way_out = "give the same again, or another folder in out="
    for setting in fields(SitesConfig):
        old, new = getattr(begun, setting.name), getattr(config, setting.name)
        is_same = setting.name == "call" or old == new
        require(is_same, f"{folder} was begun with {setting.name} = {old!r}, and now it is {new!r}: {way_out}")
    data, known = environment["sites"], then.get("sites", {})
    others = [name for name in data if data[name] != known.get(name)]
    require(not others, f"{folder} was begun with other data of {listed(others)}: {way_out}")
    is_same = environment["model"] == then.get("model")
    require(is_same, f"{folder} was begun with another model, loss or metric: {way_out}")


def problem_of_sites(
    make_model: Callable[[], nn.Module],
    sites: Mapping[str, Site],
    objective: Objective,
    trainer: LocalTrainer | None,
    *,
    seed: int,
    device: torch.device,
    precision: Precision = "float32",
    privacy: Privacy,
    validation_fraction: float,
    standardise: Standardise | None,
    begun: Sequence[Path] = (),
) -> tuple[FederatedProblem, Scaling | None]:
    """Read all sites, scale them if that is asked for, build the model, and refuse what would fail later.

    `begun` are the folders of the runs: noise of the system is drawn once, and those that go on scale as they began.
    """
    data = [client_data(name, site, validation_fraction, seed) for name, site in sites.items()]
    scaling: Scaling | None = None
    if standardise is not None:
        if isinstance(trainer, OwnLoop):
            _require_scaled_examples(dict(zip(sites, data, strict=True)))
        is_certain = privacy.mode == "deployment" and standardise.noise > 0
        scaling = begun_scaling(begun) if is_certain else None
        if scaling is not None:
            data = scaling.clients(data)
        else:
            noise = SystemNoise() if is_certain else SeededNoise(stream(seed, "statistics"))
            data, scaling = scaled_alike(data, standardise, noise)
    module = build_module(make_model, seed)
    if trainer is None:
        refuse_ignored_training(module)
    model = build_model(module, objective, data, device, precision)
    told = standardise.noise if standardise is not None else 0.0
    problem = FederatedProblem(
        model, model.read(), data, trainer or Sgd(), seed, privacy=privacy, statistics_noise=told
    )
    for name, own in zip(sites, data, strict=True):
        check_data(name, own, model, problem.initial)
    return problem, scaling


def _require_scaled_examples(sites: Mapping[str, ClientData]) -> None:
    """Refuse data that a training loop of the user's own would read past the scaling."""
    for name, own in sites.items():
        is_scaled = not isinstance(own.train, LazyExamples) or own.train.collate is None
        way_out = "leave out the collate function, or standardise"
        problem = f"site '{name}': inputs are scaled behind the collate function, and data[i] of your loop is not"
        require(is_scaled, f"{problem}: {way_out}")


def sites_environment(names: Sequence[str], problem: FederatedProblem, scaling: Scaling | None) -> dict[str, Any]:
    """Describe on whose data a run computes, with which model, by which code, and what is odd about the data."""
    prints = {
        name: fingerprint(own.train, own.validation, own.test) for name, own in zip(names, problem.clients, strict=True)
    }
    digest = hashlib.sha256(repr(prints).encode()).hexdigest()
    return {
        **machine(),
        "data": {"name": "sites", "sha256": digest},
        "sites": prints,
        "examples": example_counts(problem.clients),
        "groups": None,
        "targets": list(range(len(names))),
        # How many of which label a site holds is not for the folder or the page of a private run.
        "labels": None if problem.privacy.is_on else label_counts(problem.clients),
        "network": {"name": type(problem.model.architecture).__name__},
        "model": _model_digest(problem),
        "parameters": problem.model.layout.num_trainable,
        "is_of_sets": not problem.model.metrics.is_per_example,
        "warnings": [note for name, own in zip(names, problem.clients, strict=True) for note in notes_of(name, own)],
        **({} if scaling is None else {"scaling": vars(scaling)}),
    }


def digest_of(config: SitesConfig, environment: Mapping[str, Any]) -> str:
    """Hash whatever decides a run's result, so that a checkpoint is never continued under other conditions."""
    # A run is what it was before these existed.
    later = [name for name in ("metrics", "share", "keep", "stop_after") if not getattr(config, name)]
    settings = {name: value for name, value in asdict(config).items() if name not in ("call", *later)}
    versions = [version(name) for name in ("fedfomo", "torch")]
    decisive = (settings, versions, environment["sites"], environment["model"], *method_file(config.method).values())
    return hashlib.sha256(repr(decisive).encode()).hexdigest()


def write_parts(folder: Path, methods: Sequence[str], seeds: Sequence[int], sites: Sequence[str]) -> None:
    """Say, in the folder above the runs, which methods and seeds there are; those of earlier calls stay."""
    path = folder / "config.toml"
    known = load_toml(path) if path.exists() else {}
    parts = {
        "methods": [*dict.fromkeys([*known.get("methods", []), *methods])],
        "seeds": [*dict.fromkeys([*known.get("seeds", []), *seeds])],
        "sites": [*sites],
    }
    if parts != known:
        write_atomically(path, tomli_w.dumps(parts).encode())


def require_folder_of_sites(folder: Path) -> None:
    """Refuse a folder that holds something else than runs on own sites."""
    require(not folder.is_file(), f"{folder} is a file: give a folder in out=")
    if folder.exists() and any(folder.iterdir()):
        require(is_of_sites(folder), f"{folder} holds something else than runs of federate: give another in out=")


def spell(value: Any) -> str:
    """Spell a value of a call as Python would read it, or at least so that the same has the same words."""
    # A function is the user's own: its name is what finds it again, which its address does not.
    if hasattr(value, "__name__"):
        return value.__name__
    if isinstance(value, Mapping):
        named = cast(Mapping[Any, Any], value).items()
        return "{" + ", ".join(f"{name!r}: {spell(item)}" for name, item in named) + "}"
    text = repr(value)
    if re.search(r" at 0x[0-9a-f]+", text) is None:
        return text
    inside = ", ".join(f"{name}={re.sub(r' at 0x[0-9a-f]+', '', repr(item))}" for name, item in vars(value).items())
    return f"{type(value).__qualname__}({inside})"


def _model_digest(problem: FederatedProblem) -> str:
    """Hash the model, and what it, the loss and the metric give at first: code has no digest of its own."""
    model, initial = problem.model, problem.initial
    digest = hashlib.sha256(repr(model.layout).encode())
    digest.update(initial.numpy().tobytes())
    digest.update(b"".join(frozen_digests(model.architecture)))
    with one_torch_thread(), layer_rng(stream(problem.seed, "probe")):
        for own in problem.clients[:MOST_PROBED]:
            for examples in (own.train, own.validation, own.test):
                few = next(examples.batches(PROBES), examples)
                score = model.score(initial, few)
                named = f", metrics={dict(score.metrics)!r}" if score.metrics else ""
                figures = f"loss={score.loss!r}, accuracy={score.metric!r}, num_examples={score.num_examples}{named}"
                digest.update(f"Score({figures})".encode())
                if len(few):
                    digest.update(model.outputs(initial, few).contiguous().numpy().tobytes())
    return digest.hexdigest()
