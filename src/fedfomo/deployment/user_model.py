"""The two files that a practitioner writes, as a problem that the library can work on."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.data import ClientData
from fedfomo.core.local_training import LocalTrainer
from fedfomo.core.losses import objective_of
from fedfomo.core.model import Model, prefers_channels_last
from fedfomo.core.own_loop import as_trainer, refuse_ignored_training
from fedfomo.core.parameters import frozen_digests
from fedfomo.core.parts import kept_names, split_model
from fedfomo.core.rng import layer_rng, stream
from fedfomo.core.user_code import load_user_module
from fedfomo.errors import require, unknown
from fedfomo.runs.config import VALIDATION_FRACTION
from fedfomo.runs.own_problem import read_sites
from fedfomo.runs.site_data import check_data, client_data

MEASURES = ("metric", "metrics", "primary")  # what `model.py` may say of how models are judged


@dataclass(frozen=True)
class UserModel:
    """The network of `model.py`, and whether its convolutions run with channels last."""

    model: Model
    initial: Tensor  # as the seed draws it; the server's is everybody's
    trainer: LocalTrainer | None  # how sites train; None: by SGD, as the server's settings say
    share: tuple[str, ...] = ()  # patterns of what travels; none: everything that is not kept
    keep: tuple[str, ...] = ()  # patterns of what every site keeps for itself

    def split(self, algorithm: AnyAlgorithm) -> UserModel:
        """Return the model of which θ is what travels: all but what the method or these patterns let sites keep."""
        kept = kept_names(self.model.architecture, algorithm, self.share, self.keep)
        model, initial = split_model(self.model, self.initial, kept)
        return replace(self, model=model, initial=initial)


def load_model(
    path: Path, seed: int, channels_last: bool | None = None, device: torch.device | None = None
) -> UserModel:
    """Build the network; without being told, find out about channels last from INPUT_SHAPE, if there is one."""
    module = load_user_module(path)
    require(hasattr(module, "make_model"), f"{path} has no function make_model()")
    with layer_rng(stream(seed, "initial model")):
        network = module.make_model()
    require(isinstance(network, nn.Module), f"make_model() in {path} gives a {type(network).__name__}, not a module")
    if channels_last is None:
        shape = getattr(module, "INPUT_SHAPE", None)
        channels_last = shape is not None and prefers_channels_last(network, torch.zeros(2, *shape))
    objective = objective_of(
        getattr(module, "loss", "classification"), *(getattr(module, name, None) for name in MEASURES)
    )
    model = Model(network.to(device or torch.device("cpu")), objective.loss, objective.metrics, channels_last)
    given: Any = getattr(module, "trainer", None)
    trainer = None if given is None else as_trainer(given, f"trainer in {path}")
    if trainer is None:
        refuse_ignored_training(network)
    share, keep = (getattr(module, name, ()) for name in ("share", "keep"))
    return UserModel(model, model.read(), trainer, share, keep)


def load_own_data(path: Path, folder: Path | None, site: str, seed: int, own: UserModel) -> ClientData:
    """Read a site's data and refuse, in words, what the network cannot take."""
    module = load_user_module(path)
    if hasattr(module, "load_data"):
        given, fraction = module.load_data(folder, site), VALIDATION_FRACTION
    else:
        is_told = not getattr(module, "standardise", False)
        require(is_told, f"standardise in {path} takes all sites' data at once, which no site has: scale in load_data")
        require(hasattr(module, "sites"), f"{path} has no function load_data(folder, site), and no sites")
        sites, fraction = read_sites(module, path, seed), getattr(module, "validation_fraction", VALIDATION_FRACTION)
        if site not in sites:
            raise unknown("site", site, sites, f"in {path}")
        given = sites[site]
    data = client_data(site, given, fraction, seed)
    check_data(site, data, own.model, own.initial)
    return data


def layout_digest(model: Model) -> str:
    """Hash names, shapes and order of what travels, and frozen weights: whoever has others cannot take part."""
    layout = model.layout
    slots = [(slot.name, tuple(slot.shape), slot.start) for slot in layout.slots]
    digest = hashlib.sha256(repr((slots, layout.num_trainable, layout.channels_last)).encode())
    digest.update(b"".join(frozen_digests(model.architecture)))
    return digest.hexdigest()
