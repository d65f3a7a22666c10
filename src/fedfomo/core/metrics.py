"""What is measured of a model: one figure per example, figures of all outputs at once, and which of them leads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedfomo.core.trees import Tree, moved, tree_join
from fedfomo.errors import InputError, require

Metric = Callable[[Tensor, Tensor], Tensor]
"""From outputs and labels to one figure per example; higher is better."""

SetMetric = Callable[[Tensor, Tensor], Any]
"""From all outputs and labels of a set to one number, higher being better; or an object with reset, update, compute."""


@dataclass(frozen=True)
class Score:
    """How one model does on one set of examples; NaN when the set is empty."""

    loss: float
    metric: float  # the primary one
    num_examples: int
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])  # all by name, where there are several

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for a log or a message; `metrics` is left out where it says nothing more."""
        values = asdict(self)
        return values if self.metrics else {name: value for name, value in values.items() if name != "metrics"}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Score:
        """Read what `as_dict` gave, through JSON or not; older files call the metric accuracy."""
        known = renamed(content)
        numbers = {name: math.nan if known[name] is None else known[name] for name in ("loss", "metric")}
        metrics: Mapping[str, float | None] = known.get("metrics", {})
        named = {name: math.nan if value is None else value for name, value in metrics.items()}
        return cls(numbers["loss"], numbers["metric"], known["num_examples"], named)


def renamed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored score under today's names."""
    return {"metric" if name == "accuracy" else name: value for name, value in content.items()}


@dataclass(frozen=True)
class Metrics:
    """Everything that is measured on a set of examples."""

    per_example: Metric | None  # None: there is no figure of single examples
    name: str  # of the figure per example
    of_sets: Mapping[str, SetMetric] = field(default_factory=dict[str, SetMetric])
    primary: str = ""  # a name; by default the first metric of sets

    def __post_init__(self) -> None:
        for name, metric in self.of_sets.items():
            require(
                bool(name) and name not in ("loss", self.name), f"a metric cannot be named '{name}': choose another"
            )
            require(callable(metric) or _streams(metric), f"metric '{name}' must be a function, not {metric!r}")
        known = [*([self.name] if self.per_example else []), *self.of_sets]
        require(bool(known), "there is nothing to measure: give metric=, or metrics=")
        if self.primary and self.primary not in known:
            raise InputError(f"there is no metric '{self.primary}' to go by: choose {' or '.join(known)}")

    @classmethod
    def of(cls, metric: Metric | Metrics) -> Metrics:
        """Return what is measured where only a figure per example is given."""
        return metric if isinstance(metric, Metrics) else cls(metric, name_of(metric))

    @property
    def leading(self) -> str:
        """The name of the primary metric."""
        return self.primary or next(iter(self.of_sets), self.name)

    @property
    def is_per_example(self) -> bool:
        """Whether the primary metric is a mean over examples."""
        return self.leading not in self.of_sets

    def measure_sets(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        """Return every metric of sets."""
        return {name: _value_of(name, metric, outputs, labels) for name, metric in self.of_sets.items()}

    def measure(self, outputs: Tensor, labels: Tensor) -> float:
        """Return the primary metric of a set."""
        if self.is_per_example:
            assert self.per_example is not None  # noqa: S101 - narrows the type
            return float(self.per_example(outputs, labels).cpu().double().mean())
        return _value_of(self.leading, self.of_sets[self.leading], outputs, labels)

    def score(self, loss: float, mean: float, of_sets: Mapping[str, float], number: int) -> Score:
        """Put together what was found on so many examples; `mean` is that of the figures per example."""
        if not self.of_sets:
            return Score(loss, mean, number)
        named = {**({self.name: mean} if self.per_example else {}), **of_sets}
        return Score(loss, named[self.leading], number, named)


class Measurement:
    """Measures a set of examples that comes in batches."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._sum = 0.0
        self._outputs: list[Tensor] = []
        self._labels: list[Tree] = []

    def add(self, outputs: Tensor, labels: Tree) -> None:
        """Count a batch."""
        if self._metrics.per_example is not None:
            self._sum += float(self._metrics.per_example(outputs, labels).cpu().double().sum())
        if self._metrics.of_sets:
            self._outputs.append(outputs.detach().cpu())
            self._labels.append(moved(labels, torch.device("cpu")))

    def score(self, loss: float, number: int) -> Score:
        """Return the score of all batches, of which the mean loss is known."""
        of_sets: dict[str, float] = {}
        if self._metrics.of_sets:
            of_sets = self._metrics.measure_sets(torch.cat(self._outputs), tree_join(torch.cat, self._labels))
        return self._metrics.score(loss, self._sum / number, of_sets, number)


def name_of(metric: Metric) -> str:
    """Return what a function is called, in words."""
    name = getattr(metric, "__name__", "metric")
    return "metric" if name == "<lambda>" else name.replace("_", " ").strip()


def _streams(metric: object) -> bool:
    return all(hasattr(metric, part) for part in ("reset", "update", "compute"))


def _value_of(name: str, metric: Any, outputs: Tensor, labels: Tensor) -> float:
    try:
        if _streams(metric):
            metric.reset()
            metric.update(outputs, labels)
            value = metric.compute()
            metric.reset()  # it may hold a copy of all outputs
        else:
            value = metric(outputs, labels)
        return float(value)
    except InputError:
        raise
    except Exception as error:  # whatever a user's own code raises
        what = f"metric '{name}' fails on {len(labels)} examples ({type(error).__name__}: {error})"
        way_out = "it takes all outputs and labels and gives one number, float('nan') where it is undefined"
        raise InputError(f"{what}: {way_out}") from error
