"""The usual things to learn, each a loss and a metric that go together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from fedfomo.core.metrics import Metric, Metrics, SetMetric, name_of
from fedfomo.core.model import Loss, accuracy
from fedfomo.errors import require, unknown


@dataclass(frozen=True)
class Objective:
    """What is minimised, and what is measured."""

    loss: Loss
    metrics: Metrics

    @property
    def name(self) -> str:
        """What the primary metric is called."""
        return self.metrics.leading


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return every example's mean squared error."""
    gaps = _alike(outputs, labels) - labels
    return (gaps**2).flatten(1).mean(dim=1) if gaps.dim() > 1 else gaps**2


def minus_absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return every example's mean absolute error, negated: higher is better."""
    gaps = (_alike(outputs, labels) - labels).abs()
    return -(gaps.flatten(1).mean(dim=1) if gaps.dim() > 1 else gaps)


def labels_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return every example's mean cross-entropy over labels that are each present (1) or absent (0)."""
    losses = nn.functional.binary_cross_entropy_with_logits(_alike(outputs, labels), labels.float(), reduction="none")
    return losses.flatten(1).mean(dim=1) if losses.dim() > 1 else losses


def labels_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the share of each example's labels that are predicted correctly: present if the output is above 0."""
    right = ((_alike(outputs, labels) > 0) == (labels > 0.5)).float()
    return right.flatten(1).mean(dim=1) if right.dim() > 1 else right


def accuracy_of_classes(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the accuracy where nobody chose it, and refuse it where labels cannot be classes."""
    is_class = not labels.is_floating_point()
    way_out = 'give metric= beside the loss, or loss="regression" or "multilabel", which have one'
    require(is_class, f"labels of type {str(labels.dtype).removeprefix('torch.')} have no accuracy: {way_out}")
    return accuracy(outputs, labels)


OBJECTIVES: dict[str, Objective] = {
    "classification": Objective(nn.functional.cross_entropy, Metrics(accuracy, "accuracy")),
    "regression": Objective(squared_error, Metrics(minus_absolute_error, "minus the absolute error")),
    "multilabel": Objective(labels_loss, Metrics(labels_right, "share of labels right")),
}
"""By the word that `federate` takes for a loss."""


def objective_of(
    loss: Loss | str,
    metric: Metric | None = None,
    metrics: Mapping[str, SetMetric] | None = None,
    primary: str | None = None,
) -> Objective:
    """Complete what a user gave: a word chooses both loss and metric, and either may be the user's own.

    `metrics` are of all outputs at once, beside the metric of single examples; the first of them leads, or `primary`.
    A loss of one's own with `metrics` and without `metric` has no figure of single examples.
    """
    is_mapping = metrics is None or isinstance(metrics, Mapping)  # pyright: ignore[reportUnnecessaryIsInstance]
    require(is_mapping, f'metrics are functions by name, such as {{"auc": auc}}, not {metrics!r}')
    if isinstance(loss, str):
        if loss not in OBJECTIVES:
            raise unknown("loss", loss, OBJECTIVES)
        known = OBJECTIVES[loss]
        criterion, single, name = known.loss, known.metrics.per_example, known.name
    else:
        criterion, single, name = loss, None if metrics else accuracy_of_classes, "accuracy"
    if metric is not None:
        single, name = metric, name_of(metric)
    return Objective(criterion, Metrics(single, name, dict(metrics or {}), primary or ""))


def _alike(outputs: Tensor, labels: Tensor) -> Tensor:
    # (N, 1) beside (N,) would broadcast to N × N and teach nonsense without a word.
    fits = outputs.numel() == labels.numel()
    require(fits, f"outputs of shape {tuple(outputs.shape)} do not fit labels of shape {tuple(labels.shape)}")
    return outputs.reshape(labels.shape)
