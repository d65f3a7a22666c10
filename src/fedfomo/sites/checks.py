"""What is worth knowing of sites before they federate: what each holds, and what would mislead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from fedfomo.core.data import ClientData, can_contribute
from fedfomo.core.lazy_data import LazyExamples, spread
from fedfomo.core.losses import objective_of
from fedfomo.core.metrics import SetMetric
from fedfomo.core.model import Loss, Metric
from fedfomo.core.trees import leaves
from fedfomo.datasets.scenario_summary import overlap
from fedfomo.errors import InputError, listed
from fedfomo.privacy.config import Privacy
from fedfomo.report.history import TINY_VALIDATION
from fedfomo.runs.config import VALIDATION_FRACTION
from fedfomo.runs.federated_statistics import Moments, Standardise, as_standardise
from fedfomo.runs.provenance import label_counts
from fedfomo.runs.site_data import (
    Site,
    build_model,
    build_module,
    client_data,
    data_faults,
    fingerprints,
    lacks_test,
    leaks,
    name_faults,
    parts_of,
    receives_only,
    require_sites,
)

FEW_FOR_PRIVACY = 200  # training examples; with fewer, the noise of differential privacy drowns what there is to learn
SMALL_TEST = 30  # examples; with fewer, a gain of less than about 15 points cannot be told from chance
MOST_NAMED = 5
TRANSFORMED = 8  # examples that are read three times, to see whether they vary
LOOKED_AT = 1000  # examples of a part
MOST_UNSCALED = 30.0  # a mean or deviation that takes steps of gradients out of proportion


@dataclass(frozen=True)
class SiteSummary:
    """What one site holds."""

    name: str
    train: int
    validation: int
    test: int
    train_labels: list[int] | None
    target_labels: list[int] | None


@dataclass(frozen=True)
class Checked:
    """What a check found."""

    sites: list[SiteSummary]
    faults: list[str]  # a run would refuse them
    warnings: list[str]  # it would run, but read this first


def check_sites(
    sites: Mapping[str, Site],
    make_model: Callable[[], nn.Module] | None = None,
    loss: Loss | str = "classification",
    metric: Metric | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
    *,
    metrics: Mapping[str, SetMetric] | None = None,
    primary: str | None = None,
    standardise: bool | Standardise = False,
) -> Checked:
    """Look at sites, and at the model if there is one, without training anything; arguments are those of `federate`."""
    require_sites(sites, validation_fraction)
    is_scaled = as_standardise(standardise, Privacy()) is not None
    faults = list(name_faults(sites))
    data: dict[str, ClientData] = {}
    for name, site in sites.items():
        try:
            data[name] = client_data(name, site, validation_fraction, seed=0)
        except InputError as error:
            faults.append(str(error))
    cards = summarise_sites([*data], [*data.values()])
    warnings = [note for name, own in data.items() for note in _shortages(name, own)]
    warnings += [*_small_tests(cards), *_foreign(cards), *_first_label(cards)]
    warnings += [note for name, own in data.items() for note in leaks(name, own)]
    warnings += _shared(data)
    warnings += [note for name, own in data.items() for note in (*_transforms(name, own), *_unseen(name, own))]
    warnings += [] if is_scaled else _unscaled(data)
    warnings += _privacy(cards)
    model, initial = None, None
    if make_model is None:
        warnings.append("no model: whether one fits these data was not looked at; a Python file can name a make_model")
    else:
        module = build_module(make_model, seed=0)
        model = build_model(module, objective_of(loss, metric, metrics, primary), [*data.values()])
        initial = model.read()
        warnings += _batch_norm(module, cards)
    for name, own in data.items():
        faults += data_faults(name, own, model, initial)
    return Checked(cards, faults, warnings)


def summarise_sites(names: Sequence[str], clients: Sequence[ClientData]) -> list[SiteSummary]:
    """Return what each site holds."""
    counts = label_counts(clients)
    return [
        SiteSummary(
            name,
            len(own.train),
            len(own.validation),
            len(own.test),
            counts[0][k] if counts else None,
            counts[1][k] if counts else None,
        )
        for k, (name, own) in enumerate(zip(names, clients, strict=True))
    ]


def _shortages(name: str, data: ClientData) -> list[str]:
    notes = [*receives_only(name, data), *lacks_test(name, data)]
    if can_contribute(data) and len(data.validation) < TINY_VALIDATION:
        notes.append(
            f"{name}: {len(data.validation)} validation examples are too few to judge models by:"
            f" give it {TINY_VALIDATION} or more, or a larger validation_fraction"
        )
    return notes


def _small_tests(cards: Sequence[SiteSummary]) -> list[str]:
    small = [card.name for card in cards if 0 < card.test < SMALL_TEST]
    if not small:
        return []
    return [f"fewer than {SMALL_TEST} test examples, so gains will be known roughly only: {listed(small)}"]


def _foreign(cards: Sequence[SiteSummary]) -> list[str]:
    notes: list[str] = []
    for card in cards:
        shared = overlap(card.train_labels, card.target_labels) if card.train_labels and card.target_labels else None
        if shared is not None and shared < 0.5:
            notes.append(
                f"{card.name}: its training data and its target share only {shared:.0%} of their label mix:"
                " it depends on other sites"
            )
    return notes


def _first_label(cards: Sequence[SiteSummary]) -> list[str]:
    """Notice classes that are counted from 1: the model would need an output for a class that nobody has."""
    counts = [labels for card in cards for labels in (card.train_labels, card.target_labels) if labels]
    if not counts or any(labels[0] for labels in counts):
        return []
    greatest = max(map(len, counts)) - 1
    return [
        f"nobody has label 0: classes count from 0, so for labels up to {greatest} a model has {greatest + 1} outputs"
    ]


def _shared(data: Mapping[str, ClientData]) -> list[str]:
    """Find samples that several sites hold."""
    holders: dict[bytes, set[str]] = {}
    for name, own in data.items():
        for examples in parts_of(own).values():
            for mark in fingerprints(examples):
                holders.setdefault(mark, set()).add(name)
    pairs: dict[tuple[str, str], int] = {}
    for names in holders.values():
        ordered = sorted(names)
        for k, one in enumerate(ordered):
            for other in ordered[k + 1 :]:
                pairs[one, other] = pairs.get((one, other), 0) + 1
    ranked = sorted(pairs.items(), key=lambda item: -item[1])
    notes = [
        f"{one} and {other} hold {number} samples in common: one may train on test samples of the other"
        for (one, other), number in ranked[:MOST_NAMED]
    ]
    return [*notes, f"and {len(ranked) - MOST_NAMED} more pairs of sites"] if len(ranked) > MOST_NAMED else notes


def _transforms(name: str, data: ClientData) -> list[str]:
    """Notice random transforms that do not vary, cannot be repeated, or vary what models are judged by."""
    notes: list[str] = []
    for part, examples in parts_of(data).items():
        if not isinstance(examples, LazyExamples) or len(examples) == 0:
            continue
        few = examples.take(torch.arange(min(TRANSFORMED, len(examples))))
        try:
            once, again, other = (
                list(leaves(few.seeded(torch.Generator().manual_seed(seed)).read().inputs)) for seed in (0, 0, 1)
            )
        except Exception as error:  # whatever the user's own data set raises
            notes.append(f"{name}: its {part} data cannot be read ({type(error).__name__}: {error})")
            continue
        varies = not all(map(torch.equal, once, other))
        has_random = "Random" in repr(getattr(examples.source, "transform", None))
        if not all(map(torch.equal, once, again)):
            notes.append(
                f"{name}: its {part} data draw from a random generator of their own, which no seed reaches: results"
                " cannot be repeated; draw from the default generators of torch, NumPy or random"
            )
        elif part == "training" and has_random and not varies:
            notes.append(f"{name}: its random transforms are frozen: an example is the same at every reading")
        elif part != "training" and varies:
            notes.append(f"{name}: its {part} data are transformed at random, the same way every time: leave that out")
    return notes


def _unseen(name: str, data: ClientData) -> list[str]:
    """Notice classes that are in a site's target and not in its training data."""
    train, *targets = (part.known_labels for part in (data.train, data.validation, data.test))
    known = [labels for labels in (train, *targets) if isinstance(labels, torch.Tensor) and labels.dim() == 1]
    if len(known) < 3 or any(labels.is_floating_point() for labels in known) or len(data.train) == 0:
        return []
    unseen = sorted(set(torch.cat(known[1:]).tolist()) - set(known[0].tolist()))
    if not unseen:
        return []
    names = listed([str(label) for label in unseen])
    return [f"{name}: class {names} is in its target, but not in its training data: only other sites can teach it"]


def _unscaled(data: Mapping[str, ClientData]) -> list[str]:
    """Notice columns of tables that are far from mean 0 and deviation 1, which training takes for constants."""
    moments: Moments | None = None
    for own in data.values():
        for inputs in leaves(spread(own.train, LOOKED_AT).inputs if len(own.train) else ()):
            if inputs.dim() == 2 and inputs.is_floating_point():
                new = Moments.of(inputs.double().numpy())
                if moments is not None and len(moments.means) != len(new.means):
                    return []
                moments = new if moments is None else moments.joined(new)
    if moments is None:
        return []
    far = np.flatnonzero(np.maximum(np.abs(moments.means), moments.deviations) > MOST_UNSCALED)
    if not len(far):
        return []
    figures = [(place, moments.means[place], moments.deviations[place]) for place in far.tolist()]
    columns = listed([f"{place} (mean {mean:.3g}, deviation {deviation:.3g})" for place, mean, deviation in figures])
    return [f"unscaled columns of the inputs: {columns}; scale them alike, with federate(..., standardise=True)"]


def _privacy(cards: Sequence[SiteSummary]) -> list[str]:
    few = [card.name for card in cards if 0 < card.train < FEW_FOR_PRIVACY]
    general = (
        "privacy: models, and the weights that sites give to each other's models, are sent without noise; both reveal"
        " something of the data behind them"
    )
    if not few:
        return [general]
    least = f"fewer than {FEW_FOR_PRIVACY} training examples"
    return [general, f"privacy: with differential privacy, {least} teach little: {listed(few)}"]


def _batch_norm(module: nn.Module, cards: Sequence[SiteSummary]) -> list[str]:
    kinds: Any = nn.modules.batchnorm._BatchNorm  # pyright: ignore[reportPrivateUsage]
    layers = sum(isinstance(layer, kinds) for layer in module.modules())
    if not layers:
        return []
    notes = [
        f"BatchNorm ({layers} in the model): means and variances of a site's data travel with its model, and are mixed"
        " like weights. For differential privacy take GroupNorm instead: BatchNorm mixes examples",
    ]
    small = [card.name for card in cards if 0 < card.train < 8]
    if small:
        notes.append(f"BatchNorm: with fewer than 8 training examples its statistics are noise: {listed(small)}")
    return notes
