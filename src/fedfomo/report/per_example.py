"""What final models do on test examples, one by one: for paired intervals, and for who could use whose model."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedfomo.core.data import ClientData, Examples
from fedfomo.core.metrics import Metrics
from fedfomo.core.model import Model
from fedfomo.core.rng import stream
from fedfomo.core.trees import leaves
from fedfomo.errors import reading
from fedfomo.io import to_json, write_atomically
from fedfomo.runs.provenance import label_counts

CROSS_LIMIT = 200  # clients; more of them make a matrix that takes long to fill and nobody reads
CROSS_SECONDS = 60.0  # more than that is for those who ask

RESAMPLES = 200


@dataclass(frozen=True)
class PerExampleScores:
    """What one method's final models do."""

    figures: list[list[float]]  # each client's model on each of its own test examples
    cross: list[list[float]] | None  # the mean figure of each client's model (row) on each client's test (column)
    why_not_crossed: str  # if it was not
    by_class: list[list[list[int]]] | None = None  # of two classes: each client's right ones and all, class 0 and 1
    resamples: list[list[float]] | None = None  # a primary metric of whole sets on resamples of each client's test


def score_examples(
    model: Model, thetas: Sequence[Tensor], clients: Sequence[ClientData], crosses: bool = False
) -> PerExampleScores:
    """Try every final model on its own client's test examples; on everybody's if asked, unless that takes long."""
    figures = [model.figures(theta, data.test).tolist() for theta, data in zip(thetas, clients, strict=True)]
    by_class = right_by_class(figures, clients) if model.metrics.name == "accuracy" else None
    alone = PerExampleScores(figures, None, "", by_class, _resamples(model, thetas, clients))
    if not crosses:
        return alone
    if len(clients) > CROSS_LIMIT:
        return replace(alone, why_not_crossed=f"{len(clients)} clients are too many for a matrix of all pairs")
    cross: list[list[float]] = []
    started = time.perf_counter()
    tests = [data.test for data in clients]
    alike = _alike(tests)
    together = [tests[first].joined(*(tests[number] for number in others)) for first, *others in alike]
    for theta in thetas:
        row = [math.nan] * len(tests)
        for numbers, examples in zip(alike, together, strict=True):
            sizes = [len(tests[number]) for number in numbers]
            for number, value in zip(numbers, _metric_by_part(model, theta, examples, sizes), strict=True):
                row[number] = value
        cross.append(row)
        needed = (time.perf_counter() - started) / len(cross) * len(clients)
        if needed > CROSS_SECONDS:
            why = f"trying all {len(clients)} models on all targets would take about {needed / 60:.0f} minutes"
            return replace(alone, why_not_crossed=why)
    return replace(alone, cross=cross)


def _metric_by_part(model: Model, theta: Tensor, examples: Examples, sizes: Sequence[int]) -> list[float]:
    """Return the primary metric of each part of some examples that are tried together."""
    if model.metrics.is_per_example:
        return [float(part.mean()) for part in model.figures(theta, examples).split(list(sizes))]
    outputs, labels = (tensor.split(list(sizes)) for tensor in model.answers(theta, examples))
    return [model.metrics.measure(*part) for part in zip(outputs, labels, strict=True)]


def _resamples(model: Model, thetas: Sequence[Tensor], clients: Sequence[ClientData]) -> list[list[float]] | None:
    if model.metrics.is_per_example:
        return None
    return [
        resamples_of(model, theta, data.test, client)
        for client, (theta, data) in enumerate(zip(thetas, clients, strict=True))
    ]


def resamples_of(model: Model, theta: Tensor, test: Examples, client: int) -> list[float]:
    """Return the primary metric of one client's model on resamples of its test set."""
    return resampled(model.metrics, *model.answers(theta, test), client) if len(test) else []


def resampled(metrics: Metrics, outputs: Tensor, labels: Tensor, client: int) -> list[float]:
    """Return the primary metric on resamples of a client's test set; every model of the client meets the same ones."""
    rng = stream(0, "bootstrap", client)
    drawn = (torch.randint(len(labels), (len(labels),), generator=rng) for _ in range(RESAMPLES))
    return [metrics.measure(outputs[rows], labels[rows]) for rows in drawn]


def right_by_class(figures: Sequence[Sequence[float]], clients: Sequence[ClientData]) -> list[list[list[int]]] | None:
    """Count by client how many test examples of each of two classes are right, and all; None: there are not two."""
    counts = label_counts(clients)
    if counts is None or len(counts[1][0]) != 2 or any(value not in (0.0, 1.0) for row in figures for value in row):
        return None
    found: list[list[list[int]]] = []
    for row, data in zip(figures, clients, strict=True):
        labels = data.test.labels.tolist()
        right = [sum(int(value) for value, label in zip(row, labels, strict=True) if label == k) for k in (0, 1)]
        found.append([[right[k], labels.count(k)] for k in (0, 1)])
    return found


def write_scores(path: Path, found: PerExampleScores) -> None:
    """Keep them, so that the next report need not repeat it."""
    write_atomically(path, to_json(asdict(found)).encode())


def read_scores(path: Path) -> PerExampleScores:
    """Read what was kept."""
    with reading(path, "delete it, and it is made again"):
        found = PerExampleScores(**json.loads(path.read_bytes()))
        return replace(
            found,
            figures=_numbers(found.figures),
            cross=None if found.cross is None else _numbers(found.cross),
            resamples=None if found.resamples is None else _numbers(found.resamples),
        )


def _numbers(rows: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Read null as what it was written for: not a number."""
    return [[math.nan if value is None else value for value in row] for row in rows]


def _alike(tests: Sequence[Examples]) -> list[list[int]]:
    """Sort targets by what can be put into one tensor: sites may have images of different sizes."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for number, test in enumerate(tests):
        if len(test):
            kind: tuple[object, ...] = (number,)
            if not test.is_lazy:
                kind = tuple((part.shape[1:], part.dtype) for part in leaves((test.inputs, test.labels)))
            kinds.setdefault(kind, []).append(number)
    return list(kinds.values())
