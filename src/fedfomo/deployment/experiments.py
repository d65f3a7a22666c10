"""Several experiments on one federation: keys, certificates and sites stay, all else is each one's own.

The first is that of `federation.toml`. Every other has a folder with its settings, run, result and report, and may
start from what an earlier one has learned: each site from the model that it uploaded last, and the server, with every
site that uploaded none, from the mean of these.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from fedfomo.deployment.allowed_methods import make_method
from fedfomo.deployment.settings import FIRST, SHARED, FederationConfig, FederationFolder, check_experiment
from fedfomo.deployment.user_model import layout_digest, load_model
from fedfomo.errors import reading, require, unknown
from fedfomo.io import PRIVATE, write_atomically
from fedfomo.runs.config_io import build, load_toml, write_toml

LAYOUT = "layout"


def prepare_experiment(
    federation: FederationFolder, name: str, config: Path | None, start_from: str | None
) -> FederationFolder:
    """Make an experiment's folder, or find it again; refuse settings or a start that are not those it was made with."""
    federation.require()
    check_experiment(name)
    require(name != FIRST, f"'{FIRST}' is the experiment of federation.toml, which `fedfomo deploy server` runs")
    folder = federation.of(name)
    if folder.place.exists():
        is_same = config is None or _settings(federation, config) == folder.config()
        require(is_same, f"experiment '{name}' was begun with other settings: leave --config out, or choose a new name")
        begun_from = _origin(folder)
        same_start = start_from is None or start_from == begun_from
        began = f"from '{begun_from}'" if begun_from else "anew"
        require(same_start, f"experiment '{name}' was begun {began}: leave --start-from out, or choose a new name")
        return folder
    require(config is not None, f"there is no experiment '{name}' yet: say by --config how it trains")
    assert config is not None  # noqa: S101 - narrows the type
    settings = _settings(federation, config)
    algorithm = make_method(settings.method, settings.options)
    unfinished = federation.experiments / f".{name}.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)  # of an earlier try that was killed
    federation.experiments.mkdir(mode=0o700, exist_ok=True)
    unfinished.mkdir(mode=0o700)
    (unfinished / folder.experiment_settings.name).write_text(write_toml(settings))
    if start_from is not None:
        own = load_model(federation.model, settings.seed).split(algorithm)
        models = _uploaded(federation, start_from, layout_digest(own.model))
        write_atomically(unfinished / folder.start.name, _packed(models, {"from": start_from}), mode=PRIVATE)
    unfinished.rename(folder.place)
    return folder


def experiments_of(federation: FederationFolder) -> list[str]:
    """Return the names of all experiments but the first, the oldest first."""
    found = federation.experiments.glob("[a-z0-9]*/experiment.toml")
    return [path.parent.name for path in sorted(found, key=lambda path: path.stat().st_mtime)]


def starting_models(folder: FederationFolder, initial: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the model that an experiment starts from, and those of sites that start from their own."""
    if not folder.start.exists():
        return initial, {}
    with reading(folder.start, "restore it from a copy"):
        models = _unpacked(folder.start)[0]
    return mean(models), models


def mean(models: Mapping[int, Tensor]) -> Tensor:
    """Average models, each with the same weight, in the order of their slots."""
    total = sum(models[slot].double() for slot in sorted(models))
    assert isinstance(total, Tensor)  # noqa: S101 - there is one model at least
    return (total / len(models)).float()


def keep_uploads(folder: FederationFolder, uploads: Mapping[int, Any], layout: str, size: int) -> None:
    """Keep the model of every upload, if there is one as long as the network, for experiments to start from."""
    for slot, upload in uploads.items():
        model = getattr(upload, "model", None)
        if isinstance(model, Tensor) and model.dtype == torch.float32 and model.shape == (size,):
            folder.uploaded.mkdir(mode=0o700, exist_ok=True)
            content = _packed({slot: model}, {LAYOUT: layout})
            write_atomically(folder.uploaded / f"{slot}.safetensors", content, durable=False, mode=PRIVATE)


def _settings(federation: FederationFolder, config: Path) -> FederationConfig:
    """Read how an experiment trains; what is left open is as in federation.toml."""
    table, known = load_toml(config), load_toml(federation.settings)
    base = federation.of(FIRST).config()
    for name in SHARED:
        is_same = table.get(name, getattr(base, name)) == getattr(base, name)
        require(is_same, f"{config}: {name} is one for all experiments, and federation.toml has {getattr(base, name)}")
    same_method = table.get("method", base.method) == base.method
    tables = {name for name, value in known.items() if isinstance(value, dict)}  # options of the method there
    inherited = {name: value for name, value in known.items() if same_method or name not in tables}
    return build(FederationConfig, {**inherited, **table}, config)


def _uploaded(federation: FederationFolder, name: str, layout: str) -> dict[int, Tensor]:
    """Return what the sites of an earlier experiment uploaded last; refuse models of another network."""
    earlier = federation.of(name)
    names = [FIRST, *experiments_of(federation)]
    if name not in names:
        raise unknown("experiment", name, names)
    staying = [earlier.uploaded / f"{site.slot}.safetensors" for site in federation.members()]
    paths = sorted(path for path in staying if path.exists())
    none = "no site has uploaded a whole model in it: no round was complete, or its method sends none"
    require(bool(paths), f"nothing can start from experiment '{name}': {none}")
    models: dict[int, Tensor] = {}
    for path in paths:
        with reading(path, "delete it, and its site starts from the mean of the others"):
            found, facts = _unpacked(path)
        other = f"nothing can start from experiment '{name}': it trained another network, or another part of it"
        require(facts.get(LAYOUT) == layout, f"{other}, than model.py and this method have now")
        models |= found
    return models


def _packed(models: Mapping[int, Tensor], facts: Mapping[str, str]) -> bytes:
    return save({str(slot): model.contiguous() for slot, model in models.items()}, dict(facts))


def _unpacked(path: Path) -> tuple[dict[int, Tensor], dict[str, str]]:
    with safe_open(path, "pt") as file:
        models = {int(slot): file.get_tensor(slot) for slot in file.keys()}  # noqa: SIM118 - it is no dict
        return dict(sorted(models.items())), file.metadata() or {}


def _origin(folder: FederationFolder) -> str | None:
    return _unpacked(folder.start)[1].get("from") if folder.start.exists() else None
