"""What a user gives for a federation, sites with their data and a model, and what can be wrong with it."""

from __future__ import annotations

import copy
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedfomo.core.data import ClientData, Examples, can_contribute
from fedfomo.core.device import Precision
from fedfomo.core.example_checks import check_examples
from fedfomo.core.given_data import as_examples
from fedfomo.core.lazy_data import LazyExamples, spread
from fedfomo.core.losses import Objective
from fedfomo.core.model import Model, prefers_channels_last
from fedfomo.core.rng import layer_rng, stream
from fedfomo.core.trees import leaves, tree_map
from fedfomo.errors import InputError, require

Data = Examples | tuple[Tensor, Tensor] | Dataset[Any]
Site = tuple[Data, Data] | tuple[Data, Data, Data]
"""(train, target), of which the target is divided into validation and test; or (train, validation, test)."""

PRINTED_AT_ONCE = 64  # examples
MOST_LOOKED_AT = 64  # examples of a part that is read lazily
LONGEST_NAME = 200  # bytes; file systems take 255, and files of a site have endings


def require_sites(sites: Mapping[str, Site], validation_fraction: float) -> None:
    """Refuse what is no mapping of sites at all, and a division that is none."""
    require(isinstance(sites, Mapping) and len(sites) > 0, "give sites as {name: (train, target)}, at least one")  # pyright: ignore[reportUnnecessaryIsInstance]
    odd = [name for name in sites if not isinstance(name, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
    require(not odd, f"names of sites are texts, not {odd}")
    is_share = isinstance(validation_fraction, int | float) and 0 < validation_fraction < 1  # pyright: ignore[reportUnnecessaryIsInstance]
    require(is_share, f"validation_fraction must be between 0 and 1, not {validation_fraction!r}")


def name_faults(sites: Mapping[str, Site]) -> Iterator[str]:
    """Find names that cannot name files, or would name the same."""
    for name in sites:
        if not re.fullmatch(r"[^/\\\x00-\x1f]+", name) or name.startswith("."):
            yield f"site name '{name}' cannot name a file: leave out slashes and leading dots"
        elif len(os.fsencode(name)) > LONGEST_NAME:
            length = len(os.fsencode(name))
            yield f"site name '{name[:20]}…' cannot name a file: at most {LONGEST_NAME} bytes, not {length}"
    if len({name.casefold() for name in sites}) < len(sites):
        yield "two sites differ in upper and lower case only: their files would overwrite each other"


def client_data(name: str, site: Site, validation_fraction: float, seed: int) -> ClientData:
    """Read a site's parts, and divide a target into validation and test if it comes in one."""
    is_site = isinstance(site, tuple | list) and len(site) in (2, 3)  # pyright: ignore[reportUnnecessaryIsInstance]
    require(is_site, f"site '{name}': give (train, target) or (train, validation, test)")
    if any(isinstance(part, Tensor) for part in site):
        raise InputError(f"site '{name}': each of train and target is a pair (inputs, labels): give ((x, y), (x, y))")
    try:
        parts = [_in_memory(as_examples(part)) for part in site]
    except InputError as error:
        raise InputError(f"site '{name}': {error}") from None
    if len(parts) == 3:
        return ClientData(*parts)
    train, target = parts
    order = torch.randperm(len(target), generator=stream(seed, "target division", name))
    cut = min(max(1, round(validation_fraction * len(target))), max(1, len(target) - 1))  # of two or more, one for each
    return ClientData(train, target.take(order[:cut]), target.take(order[cut:]))


def _in_memory(examples: Examples) -> Examples:
    """Return examples as plain values in main memory: no part of a graph of gradients, and on no other device."""
    if examples.is_lazy:
        return examples
    for what, tree in (("inputs", examples.inputs), ("labels", examples.labels)):
        is_meta = any(tensor.is_meta for tensor in leaves(tree))
        require(not is_meta, f"the {what} are on the device meta, which holds no values: give real tensors")
    inputs, labels = (
        tree_map(lambda tensor: tensor.detach().cpu(), tree) for tree in (examples.inputs, examples.labels)
    )
    return Examples(inputs, labels)


def data_faults(name: str, data: ClientData, model: Model | None, initial: Tensor | None) -> Iterator[str]:
    """Find what would fail, or mislead, after an hour: in the data themselves, and where there is a model, with it."""
    for part, examples in parts_of(data).items():
        if len(examples) == 0:
            continue
        try:
            few = spread(examples, MOST_LOOKED_AT)
        except Exception as error:  # whatever the user's own data set raises
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            where = "; ".join(getattr(error, "__notes__", []))
            yield f"site '{name}', {part} data: {kind}{error}{where and f' ({where})'}"
            continue
        for what, tree in (("inputs", few.inputs), ("labels", few.labels)):
            if any(tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()) for tensor in leaves(tree)):
                yield f"site '{name}': its {part} {what} hold values that are not finite"
        if model is not None and initial is not None:
            try:
                check_examples(model, initial, examples)
            except InputError as error:
                yield f"site '{name}', {part} data: {error}"


def check_data(name: str, data: ClientData, model: Model, initial: Tensor) -> None:
    """Refuse the first fault before anything is computed."""
    for fault in data_faults(name, data, model, initial):
        raise InputError(fault)


def build_module(make_model: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Build a network of our own: whatever `make_model` returns is left as it is."""
    is_module = isinstance(make_model, nn.Module)
    require(not is_module and callable(make_model), "make_model must be a function that builds a module, such as Net")
    with layer_rng(stream(seed, "initial model")):
        module: object = make_model()
    if not isinstance(module, nn.Module):
        raise InputError(f"make_model must return a torch.nn.Module, not {type(module).__name__}")
    parameters = list(module.parameters())
    require(bool(parameters), "the model has no parameters: there is nothing to train")
    is_real = not any(parameter.is_meta for parameter in parameters)
    require(is_real, "the model's parameters are on the device meta, which holds no values: build it on the cpu")
    return copy.deepcopy(module)


def build_model(
    module: nn.Module,
    objective: Objective,
    data: list[ClientData],
    device: torch.device | None = None,
    precision: Precision = "float32",
) -> Model:
    """Return the model that sites train, on a device."""
    parts = [part for own in data for part in (own.train, own.validation)]
    largest = max(parts, key=len, default=None)
    channels_last = bool(largest) and prefers_channels_last(module, largest.probe().inputs)
    module = module.to(device or torch.device("cpu"))
    return Model(module, objective.loss, objective.metrics, channels_last, precision=precision)


def notes_of(name: str, data: ClientData) -> list[str]:
    """Say what is odd about a site but stops nothing."""
    return [*receives_only(name, data), *lacks_test(name, data), *leaks(name, data, into="test")]


def receives_only(name: str, data: ClientData) -> list[str]:
    """Say so if a site has not enough data to contribute a model."""
    if can_contribute(data):
        return []
    counts = f"{len(data.train)} training and {len(data.validation)} validation examples"
    return [f"{name} has {counts}: it receives models but contributes none"]


def lacks_test(name: str, data: ClientData) -> list[str]:
    """Say so if a site has nothing to be measured on."""
    return [] if len(data.test) else [f"{name} has no test examples: whether federating pays for it cannot be measured"]


def leaks(name: str, data: ClientData, into: str | None = None) -> list[str]:
    """Find samples that are in two parts of a site; whether they are the same record, nobody else can tell."""
    return [
        f"{name}: {twice} samples are both in its {one} and in its {other} data: unless they are different"
        " records that are merely equal, its figures will be too good: leave them out of one"
        for one, other, twice in in_two_parts(data)
        if into in (None, other)
    ]


def parts_of(own: ClientData) -> dict[str, Examples]:
    """Return a site's three parts by name."""
    return {"training": own.train, "validation": own.validation, "test": own.test}


def fingerprints(examples: Examples) -> list[bytes]:
    """Return one for each example: equal inputs with equal labels have equal ones."""
    prints: list[bytes] = []
    for batch in examples.batches(PRINTED_AT_ONCE):
        # A class is the same in whole numbers and in fractions.
        tensors = [*leaves(batch.inputs), *(labels.double() for labels in leaves(batch.labels))]
        prints += [_hash(*(tensor[row].numpy() for tensor in tensors)) for row in range(len(batch))]
    return prints


def in_two_parts(own: ClientData) -> list[tuple[str, str, int]]:
    """Return which two parts of a site share samples, and how many."""
    prints = {part: _marks(examples) for part, examples in parts_of(own).items()}
    shared = [(one, other, len(prints[one] & prints[other])) for one, other in combinations(prints, 2)]
    return [(one, other, number) for one, other, number in shared if number]


def _marks(examples: Examples) -> set[Any]:
    """Return what tells samples apart: if they are read lazily, their places in the data set, without reading them."""
    if isinstance(examples, LazyExamples):
        return {(id(examples.origin), index) for index in examples.indices.tolist()}
    return set(fingerprints(examples))


def _hash(*arrays: NDArray[Any]) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.digest()
