"""The usual things to learn, each a loss and a metric that go together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from fedfomo.core.model import Loss, Metric, accuracy
from fedfomo.errors import require, unknown


@dataclass(frozen=True)
class Objective:
    """What is minimised, what is measured, and what the measure is called."""

    loss: Loss
    metric: Metric
    name: str


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return every example's mean squared error."""
    gaps = _alike(outputs, labels) - labels
    return (gaps**2).flatten(1).mean(dim=1) if gaps.dim() > 1 else gaps**2


def minus_absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return every example's mean absolute error, negated: higher is better."""
    gaps = (_alike(outputs, labels) - labels).abs()
    return -(gaps.flatten(1).mean(dim=1) if gaps.dim() > 1 else gaps)


def labels_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return every example's mean cross-entropy over labels that are each there (1) or not (0)."""
    losses = nn.functional.binary_cross_entropy_with_logits(_alike(outputs, labels), labels.float(), reduction="none")
    return losses.flatten(1).mean(dim=1) if losses.dim() > 1 else losses


def labels_right(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the share of each example's labels that are told rightly: there if the output is above 0."""
    right = ((_alike(outputs, labels) > 0) == (labels > 0.5)).float()
    return right.flatten(1).mean(dim=1) if right.dim() > 1 else right


def accuracy_of_classes(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the accuracy where nobody chose it, and refuse it where labels cannot be classes."""
    is_class = not labels.is_floating_point()
    way_out = 'give metric= beside the loss, or loss="regression" or "multilabel", which have one'
    require(is_class, f"labels of type {str(labels.dtype).removeprefix('torch.')} have no accuracy: {way_out}")
    return accuracy(outputs, labels)


OBJECTIVES: dict[str, Objective] = {
    "classification": Objective(nn.functional.cross_entropy, accuracy, "accuracy"),
    "regression": Objective(squared_error, minus_absolute_error, "minus the absolute error"),
    "multilabel": Objective(labels_loss, labels_right, "share of labels right"),
}
"""By the word that `federate` takes for a loss."""


def objective_of(loss: Loss | str, metric: Metric | None) -> Objective:
    """Complete what a user gave: a word chooses both loss and metric, and either may be the user's own."""
    if isinstance(loss, str):
        if loss not in OBJECTIVES:
            raise unknown("loss", loss, OBJECTIVES)
        known = OBJECTIVES[loss]
        return known if metric is None else Objective(known.loss, metric, _name(metric))
    return (
        Objective(loss, accuracy_of_classes, "accuracy") if metric is None else Objective(loss, metric, _name(metric))
    )


def _name(metric: Metric) -> str:
    name = getattr(metric, "__name__", "metric")
    return "metric" if name == "<lambda>" else name.replace("_", " ").strip()


def _alike(outputs: Tensor, labels: Tensor) -> Tensor:
    # (N, 1) beside (N,) would broadcast to N × N and teach nonsense without a word.
    fits = outputs.numel() == labels.numel()
    require(fits, f"outputs of shape {tuple(outputs.shape)} do not fit labels of shape {tuple(labels.shape)}")
    return outputs.reshape(labels.shape)
