"""What of a model is shared, and what every client keeps for itself."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn

from fedfomo.core.algorithm import AnyAlgorithm
from fedfomo.core.model import Model
from fedfomo.core.parameters import Layout
from fedfomo.errors import listed, require


def kept_names(
    module: nn.Module, algorithm: AnyAlgorithm, share: Sequence[str] = (), keep: Sequence[str] = ()
) -> frozenset[str]:
    """Return what a method and the patterns of a user keep at the clients: names of parameters and moving buffers."""
    names = [slot.name for slot in Layout.of(module).slots]
    for option, patterns in (("share", share), ("keep", keep)):
        is_list = not isinstance(patterns, str) and all(isinstance(pattern, str) for pattern in patterns)  # pyright: ignore[reportUnnecessaryIsInstance]
        require(is_list, f"{option} must be a list of patterns such as ('*.bn*', 'head.*'), not {patterns!r}")
        for pattern in patterns:
            known = any(fnmatchcase(name, pattern) for name in names)
            require(
                known,
                f"{option}: no parameter that trains, and no buffer that moves, is like {pattern!r}: there is"
                f" {listed(names[:12])}{', …' if len(names) > 12 else ''}",
            )
    outside = [name for name in names if share and not _is_like(name, share)]
    inside = [name for name in names if _is_like(name, keep)]
    return frozenset([*outside, *inside, *algorithm.keeps(module)])


def split_model(model: Model, initial: Tensor, kept: frozenset[str]) -> tuple[Model, Tensor]:
    """Return a model of whose parameters only those travel that are not kept, and what travels of the initial ones."""
    if kept == model.kept:
        return model, initial
    model.load(initial)
    module = copy.deepcopy(model.architecture)
    split = Model(module, model.criterion, model.metrics, model.layout.channels_last, kept, model.precision)
    return split, split.read()


def _is_like(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
